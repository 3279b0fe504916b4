"""CUDA C++ to machine code in memory, by NVIDIA's run-time compiler (no headers, no nvcc, no GPU).

The library comes with PyTorch's CUDA wheels (`nvidia-cuda-nvrtc`). Its major version is the one
that PyTorch was built with, so that the driver which runs PyTorch also loads the result.
"""

import ctypes
import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path

import torch

from specengine.kernels.errors import KernelError

MAJOR_WITHOUT_CUDA = 13


def _wheel_folders() -> list[Path]:
    spec = importlib.util.find_spec("nvidia")
    roots = [] if spec is None else [Path(p) for p in spec.submodule_search_locations or ()]
    return [lib for root in roots for lib in sorted(root.glob("*/lib"))]


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiler library, or None where none is installed."""
    major = (torch.version.cuda or str(MAJOR_WITHOUT_CUDA)).split(".")[0]
    name = f"libnvrtc.so.{major}"
    for path in [name, *(str(folder / name) for folder in _wheel_folders())]:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    return None


def _require() -> ctypes.CDLL:
    found = library()
    if found is None:
        raise KernelError(
            "NVIDIA's run-time compiler is not installed",
            where="libnvrtc",
            fix="install the nvidia-cuda-nvrtc wheel of PyTorch's CUDA version",
        )
    return found


def version() -> tuple[int, int]:
    """Version of the compiler, part of the cache key of what it made."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _require().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def _text(lib: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(lib, f"nvrtcGet{what}")(program, buffer)
    return buffer.raw


def compile_source(name: str, source: str, architecture: str, defines: Sequence[str]) -> bytes:
    """Machine code of `source` for `architecture` (such as "sm_90a").

    Args:
        name: file name that compiler messages show.
        defines: preprocessor definitions, each "NAME=VALUE".

    Raises:
        KernelError: the compiler is absent or refuses the source (the message holds its log).
    """
    lib = _require()
    program = ctypes.c_void_p()
    lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), name.encode(), 0, None, None)
    options = [f"--gpu-architecture={architecture}", "--std=c++17", "-default-device"]
    options += [f"-D{define}" for define in defines]
    array = (ctypes.c_char_p * len(options))(*[option.encode() for option in options])
    try:
        if lib.nvrtcCompileProgram(program, len(options), array):
            log = _text(lib, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            raise KernelError(
                f"does not compile for {architecture}: {log.strip()}",
                where=name,
                fix="report this with the compiler version",
            )
        return _text(lib, program, "CUBIN")
    finally:
        lib.nvrtcDestroyProgram(ctypes.byref(program))
