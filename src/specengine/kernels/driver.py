"""The few calls of the CUDA driver that kernels need: load, launch, describe a tile of a matrix."""

import ctypes
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from specengine.kernels import build
from specengine.kernels.errors import KernelError

MAX_DYNAMIC_SHARED_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
DEPENDENT_LAUNCH = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
BFLOAT16, SWIZZLE_128, PROMOTE_256 = 9, 3, 3


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _check(code: int, what: str, where: str) -> None:
    if code == 0:
        return
    text = ctypes.c_char_p()
    _driver().cuGetErrorString(code, ctypes.byref(text))
    reason = (text.value or b"unknown error").decode()
    raise KernelError(
        f"{what} failed with CUDA error {code} ({reason})",
        where=where,
        fix="see the driver's log; a driver older than the compiler refuses its code",
    )


def _make_context_current(device: int) -> None:
    """A thread that PyTorch has not used yet has no CUDA context."""
    current = ctypes.c_void_p()
    _check(_driver().cuCtxGetCurrent(ctypes.byref(current)), "reading the context", "driver")
    if not current.value:
        torch.zeros(1, device=f"cuda:{device}")


@dataclass(frozen=True, slots=True)
class Kernel:
    """A loaded kernel.

    Attributes:
        name: file and entry point.
        function: the driver's handle.
        threads: threads of one block.
        shared_bytes: dynamic shared memory of one block.
    """

    name: str
    function: int
    threads: int
    shared_bytes: int

    def launch(
        self, blocks: int, arguments: Sequence[ctypes.Structure], *, stream: int, dependent: bool
    ) -> None:
        """Queue the kernel. `dependent`: it may start before its predecessor has ended."""
        attribute = _Attribute(id=DEPENDENT_LAUNCH)
        attribute.value[0] = 1
        config = _Config(
            grid=(blocks, 1, 1),
            block=(self.threads, 1, 1),
            shared_bytes=self.shared_bytes,
            stream=stream,
            attributes=ctypes.pointer(attribute),
            attribute_count=1 if dependent else 0,
        )
        pointers = (ctypes.c_void_p * len(arguments))(*[ctypes.addressof(a) for a in arguments])
        code = _driver().cuLaunchKernelEx(
            ctypes.byref(config), ctypes.c_void_p(self.function), pointers, None
        )
        _check(code, "the launch", self.name)


def architecture(device: int) -> str:
    """Compiler target of a device, with Hopper's own instructions where it has them."""
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}a" if (major, minor) == (9, 0) else f"sm_{major}{minor}"


@functools.cache
def load(
    name: str, device: int, defines: tuple[str, ...], threads: int, shared_bytes: int
) -> Kernel:
    """Kernel `name` on a device, compiled if the cache does not hold it.

    Raises:
        KernelError: no compiler, or the driver refuses the code.
    """
    with torch.cuda.device(device):
        _make_context_current(device)
        code = build.cubin(name, architecture(device), defines)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        driver = _driver()
        _check(driver.cuModuleLoadData(ctypes.byref(module), code), "loading", name)
        found = driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode())
        _check(found, "finding the entry point", name)
        granted = driver.cuFuncSetAttribute(function, MAX_DYNAMIC_SHARED_BYTES, shared_bytes)
        _check(granted, f"asking for {shared_bytes} bytes of shared memory", name)
    return Kernel(name, function.value or 0, threads, shared_bytes)


class TensorMap(ctypes.Structure):
    """The copy engine's description of a matrix, passed to a kernel by value."""

    _fields_ = (("opaque", ctypes.c_uint64 * 16),)


def describe_rows(x: torch.Tensor, box_rows: int) -> TensorMap:
    """Boxes of `box_rows` x 64 of bf16 matrix `x` in the 128-byte swizzle; zeros outside of it.

    Args:
        x: bf16 [rows, k], unit stride along k, row stride and address multiples of 16 bytes.
    """
    room = ctypes.create_string_buffer(192)
    start = -ctypes.addressof(room) % 64
    opaque = TensorMap.from_buffer(room, start)
    rows, columns = x.shape
    code = _driver().cuTensorMapEncodeTiled(
        ctypes.byref(opaque),
        BFLOAT16,
        2,
        ctypes.c_void_p(x.data_ptr()),
        (ctypes.c_uint64 * 2)(columns, rows),
        (ctypes.c_uint64 * 1)(x.stride(0) * 2),
        (ctypes.c_uint32 * 2)(64, box_rows),
        (ctypes.c_uint32 * 2)(1, 1),
        0,
        SWIZZLE_128,
        PROMOTE_256,
        0,
    )
    _check(code, f"describing rows of shape {tuple(x.shape)}", "tensor map")
    return opaque
