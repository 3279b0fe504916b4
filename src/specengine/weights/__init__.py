"""Lossless weight formats for tensor-core kernels, and low-bit copies beside them.

`docs/weights.md` explains the formats; `layout.py` and `packed.py` state every byte.
"""

from specengine.weights.checks import check, decode_checked
from specengine.weights.facts import Facts, describe
from specengine.weights.head_copy import HeadCopy, encode_head
from specengine.weights.low_bit import LowBit, decode_low_bit, encode_low_bit
from specengine.weights.packed import Packed, join
from specengine.weights.registry import FORMATS, decode, encode
from specengine.weights.w12 import decode_view

__all__ = [
    "FORMATS",
    "Facts",
    "HeadCopy",
    "LowBit",
    "Packed",
    "check",
    "decode",
    "decode_checked",
    "decode_low_bit",
    "decode_view",
    "describe",
    "encode",
    "encode_head",
    "encode_low_bit",
    "join",
]
