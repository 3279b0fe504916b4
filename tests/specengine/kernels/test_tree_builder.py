"""Trees of the kernel are the CPU builder's, node for node, ties included; also inside a graph."""

from dataclasses import fields

import numpy as np
import pytest
import torch

from specengine.errors import OptionError
from specengine.kernels import build, nvrtc
from specengine.kernels.tree_builder import build_best_first_trees, fits
from specengine.lattice import Lattice
from specengine.trees import build_best_first

gpu = pytest.mark.gpu
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SHAPES = [(1, 1, 2), (1, 5, 9), (16, 1, 20), (3, 2, 64), (7, 16, 8), (16, 16, 2), (16, 16, 16),
          (16, 16, 32), (16, 16, 33), (16, 16, 63), (16, 16, 64), (12, 11, 47)]  # fmt: skip


def draw(
    seed: int, count: int, positions: int, candidates: int, *, ties: bool, spread: float = 2.0
) -> list[Lattice]:
    """Lattices; with ties of scores so coarse that equal ones abound."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(count, positions, candidates, candidates)) * spread
    scores[:, 0] = scores[:, 0, :1]
    edge = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    if ties:
        edge = np.minimum(np.round(edge), 0.0)
    ids = np.argsort(rng.random((count, positions, 64)), axis=-1)[..., :candidates]
    return [
        Lattice(a.astype(np.int64), b.astype(np.float32)).check()
        for a, b in zip(ids, edge, strict=True)
    ]


def tensors(lattices: list[Lattice], device: str) -> tuple[torch.Tensor, ...]:
    ids = torch.from_numpy(np.stack([item.ids for item in lattices])).to(device)
    edge = torch.from_numpy(np.stack([item.edge for item in lattices])).to(device)
    return ids, edge, torch.arange(len(lattices), device=device) + 5000


def check(lattices: list[Lattice], trees: object, nodes: int) -> None:
    found = {item.name: getattr(trees, item.name).cpu().numpy() for item in fields(trees)}
    for index, lattice in enumerate(lattices):
        expected = build_best_first(lattice, 5000 + index, nodes)
        size = int(found["size"][index])
        assert size == len(expected)
        for name, padding in (("tokens", -1), ("parent", -1), ("depth", -1), ("logp", -np.inf)):
            np.testing.assert_array_equal(found[name][index, :size], getattr(expected, name))
            assert (found[name][index, size:] == padding).all()


@pytest.mark.parametrize("ties", [False, True])
def test_without_a_gpu_the_reference_builds(ties: bool) -> None:
    lattices = draw(0, 3, 4, 5, ties=ties)
    check(lattices, build_best_first_trees(*tensors(lattices, "cpu"), 12), 12)
    assert not fits(torch.device("cpu"), 4, 5, 12)


def test_tensors_that_do_not_fit_are_refused() -> None:
    ids, edge, anchor = tensors(draw(0, 3, 4, 5, ties=False), "cpu")
    for wrong in (
        (ids, edge[:, :3].contiguous(), anchor),
        (ids, edge.double(), anchor),
        (ids, edge, anchor[:2]),
        (ids.int(), edge, anchor),
        (ids.transpose(0, 1).contiguous().transpose(0, 1), edge, anchor),
        (ids[:0], edge[:0], anchor[:0]),
    ):
        with pytest.raises(OptionError, match="on a device"):
            build_best_first_trees(*wrong, 8)


@pytest.mark.skipif(nvrtc.library() is None, reason="needs NVIDIA's run-time compiler")
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a", "sm_120"])
def test_the_kernel_compiles(architecture: str) -> None:
    source = build.source_text("best_first")
    assert nvrtc.compile_source("best_first.cu", source, architecture, [])[:4] == b"\x7fELF"


@gpu
@on_gpu
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_cpu_builder(
    shape: tuple[int, int, int], ties: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions, candidates, nodes = shape
    assert fits(torch.device("cuda"), *shape)
    empty = torch.empty
    # Outputs start as -7, so that a row which nothing writes is seen.
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(-7))
    for seed, spread in enumerate((0.5, 2.0, 6.0, 20.0)):
        lattices = draw(seed, 40, positions, candidates, ties=ties, spread=spread)
        check(lattices, build_best_first_trees(*tensors(lattices, "cuda"), nodes), nodes)


@gpu
@on_gpu
def test_certain_edges_gain_nothing() -> None:
    edge = np.full((1, 16, 16, 16), -30.0, dtype=np.float32)
    edge[..., 3] = 1e-6
    (lattice,) = [Lattice(np.arange(256).reshape(16, 16), edge[0])]
    for nodes in (8, 40):
        check([lattice], build_best_first_trees(*tensors([lattice], "cuda"), nodes), nodes)


@gpu
@on_gpu
def test_a_captured_graph_builds_the_trees_of_new_lattices() -> None:
    ids, edge, anchor = tensors(draw(0, 4, 16, 16, ties=False), "cuda")
    build_best_first_trees(ids, edge, anchor, 32)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        trees = build_best_first_trees(ids, edge, anchor, 32)
    for seed, ties in ((1, False), (2, True), (3, False)):
        lattices = draw(seed, 4, 16, 16, ties=ties)
        for old, new in zip((ids, edge), tensors(lattices, "cuda"), strict=False):
            old.copy_(new)
        graph.replay()
        check(lattices, trees, 32)


@gpu
@on_gpu
def test_larger_shapes_go_through_the_reference() -> None:
    lattices = draw(0, 2, 17, 4, ties=True)
    assert not fits(torch.device("cuda"), 17, 4, 20)
    check(lattices, build_best_first_trees(*tensors(lattices, "cuda"), 20), 20)
