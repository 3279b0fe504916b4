"""Which of torch's attention kernels decoding uses.

cuDNN's makes a plan for every length of keys that it meets, and decoding meets a new one at each
step: on an H200 the first requests of a process took two to six times as long with it.
"""

from contextlib import AbstractContextManager

from torch.nn.attention import SDPBackend, sdpa_kernel

KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def decoding_attention() -> AbstractContextManager[None]:
    """Scaled dot-product attention within uses one of `KERNELS`, as torch sees fit."""
    return sdpa_kernel(KERNELS)
