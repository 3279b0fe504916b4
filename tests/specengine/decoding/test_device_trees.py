"""Option `device_tree`: the host's trees, built where the drafter's scores are, or a refusal.

Here the plain torch reference stands for the kernel, so a test says that a GPU builds the shape.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from specengine.decoding import device_trees
from specengine.decoding.engine import Engine
from specengine.decoding.options import EngineOptions
from specengine.drafters.driven import as_lattice
from specengine.errors import NumericError, OptionError
from specengine.trees import DraftTree, build_best_first

PROMPT = [5, 6, 7, 11]
FIELDS = ("tokens", "parent", "depth", "logp")


@pytest.fixture
def a_gpu_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every shape up to the kernel's, as on a GPU."""

    def fits(device: torch.device, positions: int, candidates: int, nodes: int) -> bool:
        return positions <= 16 and candidates <= 16 and nodes <= 64

    monkeypatch.setattr(device_trees, "fits", fits)


def _trees(engine: Engine, run_request: Callable[..., list[int]], **kwargs: object) -> list:
    """Every verified tree of a request, and its text."""
    found: list[DraftTree] = []
    verify = engine._step._verifier.verify

    def seen(slot: object, tree: DraftTree) -> object:
        found.append(tree)
        return verify(slot, tree)

    engine._step._verifier.verify = seen
    return [found, run_request(engine, PROMPT, 14, ignore_eos=True, **kwargs)]


@pytest.mark.parametrize(
    "changes",
    [{"nodes": 8}, {"nodes": 64, "positions": 16}, {"nodes": 2}, {"nodes": 12, "ngram": 4}],
    ids=str,
)
def test_steps_are_those_of_the_host(
    changes, a_gpu_builds, make_target, random_drafter, run_request
) -> None:
    target = make_target("llama", taps=(0,))
    drafter = random_drafter(target)
    host = Engine(target, drafter, EngineOptions(tree="best_first", **changes))
    there = host.variant(device_tree=True)
    (expected, text), (found, same) = _trees(host, run_request), _trees(there, run_request)
    assert same == text
    assert len(found) == len(expected) > 3
    for tree, wanted in zip(found, expected, strict=True):
        for name in FIELDS:
            value, other = getattr(tree, name), getattr(wanted, name)
            assert value.dtype == other.dtype
            np.testing.assert_array_equal(value, other)
    # The last step of a request may have no room for a draft, and builds nothing.
    built = sum(len(tree) > 1 for tree in found)
    counted, before = there.counters.activations, host.counters.activations
    assert counted["device_tree"] == built
    assert before["device_tree"] == 0
    assert counted["best_first_tree"] == before["best_first_tree"] == built
    assert counted["extended_positions"] == before["extended_positions"]


def test_recordings_do_not_depend_on_it(a_gpu_builds, make_target, random_drafter) -> None:
    target = make_target("llama", taps=(0,))
    host = Engine(target, random_drafter(target), EngineOptions(tree="best_first", nodes=8))
    expected, found = (
        engine.record(PROMPT, 9, 7) for engine in (host, host.variant(device_tree=True))
    )
    for name in ("tokens", "ids", "edge"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize("depth", [1, 3, 16])
@pytest.mark.parametrize("nodes", [2, 7, 40])
def test_ties_and_cut_lattices_are_built_as_on_the_host(depth: int, nodes: int) -> None:
    rng = np.random.default_rng(depth)
    # Powers of two: scores that are equal stay so.
    scores = np.log2(rng.integers(1, 3, (16, 4, 4))).astype(np.float32)
    scores[0] = scores[0, :1]
    ids = torch.from_numpy(np.argsort(rng.random((16, 40)), axis=1)[:, :4].copy())
    lattice = as_lattice(ids, torch.from_numpy(scores), "test")
    host = lattice.on_host().check()
    cut = type(host)(host.ids[:depth], host.edge[:depth])
    tree = device_trees.build_on_device(lattice, 50, depth, nodes)
    wanted = build_best_first(cut, 50, nodes)
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(tree, name), getattr(wanted, name))


def test_non_finite_scores_end_the_request(
    a_gpu_builds, make_target, random_drafter, run_request
) -> None:
    target = make_target("llama", taps=(0,))
    drafter = random_drafter(target)
    with torch.no_grad():
        drafter.network.candidate_selector.successor_codebook.fill_(float("nan"))
    options = EngineOptions(tree="best_first", nodes=8, device_tree=True)
    with pytest.raises(NumericError, match="drafter dflash2: produced non-finite scores"):
        run_request(Engine(target, drafter, options), PROMPT, 9, ignore_eos=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tree": "chain"}, "and 'tree' is 'chain'"),
        ({"tree": "ddtree"}, "and 'tree' is 'ddtree'"),
        ({"tree_temperature": 1.3}, "'tree_temperature' is not 1"),
        ({"nodes": 65}, "does not build 7 positions of 8 candidates into 65 nodes"),
        ({"positions": 17}, "does not build 17 positions of 8 candidates into 8 nodes"),
    ],
    ids=str,
)
def test_what_no_kernel_builds_is_refused_at_the_start(
    changes, message, a_gpu_builds, make_target, random_drafter
) -> None:
    target = make_target("llama", taps=(0,))
    options = {"tree": "best_first", "nodes": 8, "device_tree": True, **changes}
    with pytest.raises(OptionError, match=f"option 'device_tree': .*{message}"):
        Engine(target, random_drafter(target), EngineOptions(**options))


def test_a_drafter_on_the_host_is_refused(make_target, random_drafter, knowing_drafter) -> None:
    target = make_target("llama", taps=(0,))
    options = EngineOptions(tree="best_first", nodes=8, device_tree=True)
    with pytest.raises(OptionError, match="on 'cpu'"):
        Engine(target, random_drafter(target), options)
    with pytest.raises(OptionError, match="a dflash2 drafter keeps none there"):
        Engine(target, knowing_drafter(PROMPT, target, 0.5), options)
