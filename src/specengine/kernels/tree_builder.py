"""Best-first trees on a GPU by one kernel (`best_first.cu`), node for node those of the CPU.

Shapes are fixed and nothing is read back, so a CUDA graph can hold the build between drafting and
verification. `trees.best_first_torch` is the reference; it builds on any device, in many launches.
"""

import ctypes
import functools

import torch

from specengine.errors import OptionError
from specengine.kernels.driver import Kernel, load
from specengine.trees.best_first_torch import DeviceTrees, build_best_first_device

MAX_POSITIONS, MAX_CANDIDATES, MAX_NODES = 16, 16, 64
"""A path's ranks are 16 digits of 4 bits; a lane of the warp watches over two nodes."""
THREADS = 256
REDUCING = (8, 0)
"""Compute capability from which on a warp reduces a word in one instruction."""


class _Arguments(ctypes.Structure):
    """`Arguments` of best_first.cu."""

    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in ("ids", "edge", "anchor", "tokens", "parent", "depth", "logp", "size")
        ),
        *((name, ctypes.c_int) for name in ("positions", "candidates", "nodes")),
    )


def fits(device: torch.device, positions: int, candidates: int, nodes: int) -> bool:
    """Whether the kernel builds trees of this shape on a device."""
    small = positions <= MAX_POSITIONS and candidates <= MAX_CANDIDATES and nodes <= MAX_NODES
    return small and device.type == "cuda" and torch.cuda.get_device_capability(device) >= REDUCING


def build_best_first_trees(
    ids: torch.Tensor, edge: torch.Tensor, anchor: torch.Tensor, nodes: int
) -> DeviceTrees:
    """Build B trees of `nodes` rows, the root included; by the reference where no kernel fits.

    Args:
        ids: int64 [B, D, K], contiguous.
        edge: float32 [B, D, K, K] in nats, finite, contiguous.
        anchor: int64 [B], contiguous.
        nodes: N.

    Raises:
        OptionError: `nodes` is below 2, or the tensors do not fit together.
        KernelError: see `driver.load`.
    """
    count, positions, candidates = ids.shape
    _check(ids, edge, anchor)
    if nodes < 2 or not fits(ids.device, positions, candidates, nodes):
        return build_best_first_device(ids, edge, anchor, nodes)
    trees = DeviceTrees(
        tokens=torch.empty((count, nodes), dtype=torch.int64, device=ids.device),
        parent=torch.empty((count, nodes), dtype=torch.int64, device=ids.device),
        depth=torch.empty((count, nodes), dtype=torch.int64, device=ids.device),
        logp=torch.empty((count, nodes), dtype=torch.float32, device=ids.device),
        size=torch.empty(count, dtype=torch.int64, device=ids.device),
    )
    arguments = _Arguments(
        ids=ids.data_ptr(),
        edge=edge.data_ptr(),
        anchor=anchor.data_ptr(),
        tokens=trees.tokens.data_ptr(),
        parent=trees.parent.data_ptr(),
        depth=trees.depth.data_ptr(),
        logp=trees.logp.data_ptr(),
        size=trees.size.data_ptr(),
        positions=positions,
        candidates=candidates,
        nodes=nodes,
    )
    stream = torch.cuda.current_stream(ids.device).cuda_stream
    with torch.cuda.device(ids.device):
        _kernel(ids.get_device()).launch(count, (arguments,), stream=stream, dependent=False)
    return trees


@functools.cache
def _kernel(device: int) -> Kernel:
    return load("best_first", device, (), THREADS, 0)


def _check(ids: torch.Tensor, edge: torch.Tensor, anchor: torch.Tensor) -> None:
    count, positions, candidates = ids.shape
    shapes = edge.shape == (count, positions, candidates, candidates) and anchor.shape == (count,)
    dtypes = (ids.dtype, edge.dtype, anchor.dtype) == (torch.int64, torch.float32, torch.int64)
    contiguous = all(tensor.is_contiguous() for tensor in (ids, edge, anchor))
    one_device = ids.device == edge.device == anchor.device
    if not (shapes and dtypes and contiguous and one_device and count and positions and candidates):
        raise OptionError(
            f"ids {ids.dtype} {list(ids.shape)}, edges {edge.dtype} {list(edge.shape)}, anchors "
            f"{anchor.dtype} {list(anchor.shape)}",
            where="best-first trees on a device",
            fix="pass contiguous int64 [B, D, K], float32 [B, D, K, K] and int64 [B] together",
        )
