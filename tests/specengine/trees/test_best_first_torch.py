"""The device builder's nodes are the CPU builder's, in the same order, ties included."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from specengine.errors import OptionError
from specengine.lattice import Lattice
from specengine.trees import build_best_first
from specengine.trees.best_first_torch import DeviceTrees, build_best_first_device

MakeLattice = Callable[..., Lattice]


def as_tensors(lattices: list[Lattice], device: str) -> tuple[torch.Tensor, ...]:
    ids = torch.from_numpy(np.stack([item.ids for item in lattices])).to(device)
    edge = torch.from_numpy(np.stack([item.edge for item in lattices])).to(device)
    return ids, edge, torch.arange(len(lattices), device=device) + 5000


def check_equal(lattices: list[Lattice], trees: DeviceTrees, nodes: int) -> None:
    for index, lattice in enumerate(lattices):
        expected = build_best_first(lattice, 5000 + index, nodes)
        size = int(trees.size[index])
        assert size == len(expected)
        for field, padding in (("tokens", -1), ("parent", -1), ("depth", -1), ("logp", -np.inf)):
            found = getattr(trees, field)[index].cpu().numpy()
            assert found.shape == (nodes,)
            np.testing.assert_array_equal(found[:size], getattr(expected, field))
            assert (found[size:] == padding).all()


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_equals_the_cpu_builder(seed: int, ties: bool, make_lattice: MakeLattice) -> None:
    rng = np.random.default_rng(seed)
    positions, candidates = int(rng.integers(1, 7)), int(rng.integers(1, 6))
    lattices = [make_lattice(50 * seed + i, positions, candidates, ties=ties) for i in range(4)]
    nodes = int(rng.integers(2, 50))
    trees = build_best_first_device(*as_tensors(lattices, "cpu"), nodes)
    check_equal(lattices, trees, nodes)


@pytest.mark.parametrize("nodes", [16, 32, 64])
def test_equals_the_cpu_builder_at_full_size(nodes: int, make_lattice: MakeLattice) -> None:
    lattices = [make_lattice(seed, 16, 16, spread=1.0 + seed) for seed in range(4)]
    check_equal(lattices, build_best_first_device(*as_tensors(lattices, "cpu"), nodes), nodes)


def test_scores_rounded_above_zero_gain_nothing() -> None:
    lattice = Lattice(np.array([[1], [2], [3]]), np.full((3, 1, 1), 1e-6, dtype=np.float32))
    check_equal([lattice], build_best_first_device(*as_tensors([lattice], "cpu"), 6), 6)


def test_a_budget_without_a_drafted_row_is_refused(make_lattice: MakeLattice) -> None:
    with pytest.raises(OptionError, match="option 'nodes'"):
        build_best_first_device(*as_tensors([make_lattice(0, 2, 2)], "cpu"), 1)


@pytest.mark.gpu
def test_a_captured_graph_builds_the_trees_of_new_lattices(make_lattice: MakeLattice) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    first = [make_lattice(seed, 16, 16) for seed in range(2)]
    ids, edge, anchor = as_tensors(first, "cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        build_best_first_device(ids, edge, anchor, 32)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        trees = build_best_first_device(ids, edge, anchor, 32)
    for seed, ties in ((0, False), (10, False), (20, True)):
        lattices = [make_lattice(seed + i, 16, 16, ties=ties) for i in range(2)]
        new_ids, new_edge, _ = as_tensors(lattices, "cuda")
        ids.copy_(new_ids)
        edge.copy_(new_edge)
        graph.replay()
        torch.cuda.synchronize()
        check_equal(lattices, trees, 32)
