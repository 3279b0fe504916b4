"""Dense integer work where it is fast: numpy vectorises on a CPU what torch does not.

Each function gives the same result on every device; on a CPU numpy computes it on the tensor's own
memory.
"""

import math
import threading
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray

_OWN = threading.local()


def space_of(*tensors: torch.Tensor) -> tuple[Any, ...]:
    """numpy and the tensors' memory as arrays on the CPU, torch and the tensors elsewhere.

    The two share the names `bitwise_and(left, right, out=...)` and the like.
    """
    if tensors[0].device.type == "cpu":
        return (np, *(tensor.numpy() for tensor in tensors))
    return (torch, *tensors)


def scratch(use: str, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Memory with any content, the same on each call of one thread for one use.

    Memory that is new for every stretch would be taken from the system and cleared by it each time,
    and would lie in no cache.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    kept: NDArray[np.uint8] | None = getattr(_OWN, use, None)
    if kept is None or kept.size < size:
        kept = np.empty(size, dtype=np.uint8)
        setattr(_OWN, use, kept)
    return kept[:size].view(dtype).reshape(shape)


def less_by_row(bits: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """int16 [C, K] minus int16 [C], in memory that the next call may use again."""
    if bits.device.type == "cpu":
        lanes = scratch("lanes", tuple(bits.shape), np.int16)
        return torch.from_numpy(np.subtract(bits.numpy(), base.numpy()[:, None], out=lanes))
    return bits - base[:, None]


def cut_out(octets: torch.Tensor, starts: torch.Tensor, size: int) -> torch.Tensor:
    """uint8 [n, size]: stretches of equal size, at multiples of 16 bytes, int64 [n]."""
    if octets.device.type == "cpu":
        source = octets.numpy()
        found = np.empty((starts.shape[0], size), dtype=np.uint8)
        for target, start in zip(found, starts.tolist(), strict=True):
            target[:] = source[start : start + size]
        return torch.from_numpy(found)
    span = torch.arange(size // 16, device=octets.device)
    units = octets.view(torch.complex128)[(starts // 16)[:, None] + span]
    return units.view(torch.uint8).view(-1, size)


def paste_in(octets: torch.Tensor, starts: torch.Tensor, stretches: torch.Tensor) -> None:
    """The inverse of `cut_out`."""
    if octets.device.type == "cpu":
        target, size = octets.numpy(), stretches.shape[1]
        for source, start in zip(stretches.numpy(), starts.tolist(), strict=True):
            target[start : start + size] = source
        return
    span = torch.arange(stretches.shape[1] // 16, device=octets.device)
    units = octets.view(torch.complex128)
    units[(starts // 16)[:, None] + span] = stretches.view(torch.complex128)


def subtract_at(bits: torch.Tensor, places: torch.Tensor, value: int) -> None:
    """Subtract from int16 [C, K], contiguous, at places int64 [n] of the flattened matrix, which
    differ."""
    if bits.device.type == "cpu":
        bits.numpy().reshape(-1)[places.numpy()] -= np.int16(value)
    else:
        bits.view(-1)[places] -= value


def put(bits: torch.Tensor, places: torch.Tensor, values: torch.Tensor) -> None:
    """Write int16 [n] at places int64 [n] of the flattened int16 [C, K], contiguous."""
    if bits.device.type == "cpu":
        bits.numpy().reshape(-1)[places.numpy()] = values.numpy()
    else:
        bits.view(-1)[places] = values


def put_octets(octets: torch.Tensor, places: torch.Tensor, values: torch.Tensor) -> None:
    """Write the lowest bytes of integers [n] at places int64 [n] of uint8 [m]."""
    if octets.device.type == "cpu":
        octets.numpy()[places.numpy()] = values.numpy().astype(np.uint8)
    else:
        octets[places] = values.to(torch.uint8)


def in_order(values: torch.Tensor) -> torch.Tensor:
    """Integers [n], sorted."""
    if values.device.type == "cpu":
        return torch.from_numpy(np.sort(values.numpy()))
    return values.sort().values
