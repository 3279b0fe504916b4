"""Lossless weight formats for tensor-core kernels, and low-bit copies beside them.

`docs/weights.md` explains the formats; `layout.py` and `packed.py` state every byte. Importing this
package does not import torch: an encoded folder is inspected without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
_MODULES = {
    "checks": ("check", "decode_checked"),
    "facts": ("Facts", "describe"),
    "head_copy": ("HeadCopy", "encode_head"),
    "low_bit": ("LowBit", "decode_low_bit", "encode_low_bit"),
    "packed": ("Packed", "join"),
    "registry": ("FORMATS", "decode", "encode"),
    "w12": ("decode_view",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
