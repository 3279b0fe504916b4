"""Exact replay takes the live engine's steps: recorded once, played live with every tree."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from specengine.decoding.engine import Engine
from specengine.decoding.options import EngineOptions
from specengine.decoding.recorder import RecordedOutput
from specengine.lattice import Lattice
from specengine.models import Target
from specengine.trees import TREES, CaDDTree, StepCost, TreeBuilder, make_builder
from specengine.trees.calibration import fit_calibrated, fit_sequoia, outcomes_of
from specengine.trees.parameter_file import parameter_text
from specpilot.costmodel.replay_files import read_recordings
from specpilot.costmodel.replay_trees import ChainReplay, Replay, TreeReplay, replays_of
from specpilot.engines.base import Recording

VOCAB, CANDIDATES, POSITIONS = 61, 4, 6
PROMPT = np.random.default_rng(5).integers(3, VOCAB, 11).tolist()
HOT = "best_first at 1.4"
every_tree = pytest.mark.parametrize("name", [*TREES, HOT])


@dataclass
class PlacedState:
    """How many tokens lie before the anchor."""

    length: int = 0


class PlacedDrafter:
    """Knows the text and drafts it with gaps; the lattice depends on the place alone.

    Recording drafts at every position and a live request only where its steps end, so a drafter
    with a stream of random numbers would draft differently in the two.
    """

    kind = "dflash2"
    taps = (0,)
    trained_positions = POSITIONS

    def __init__(self, text: list[int]) -> None:
        self.text = text

    def new_state(self, capacity: int) -> PlacedState:
        return PlacedState()

    def extend(self, state: PlacedState, features: torch.Tensor, tokens: np.ndarray) -> None:
        state.length += len(features)

    def draft(self, state: PlacedState, anchor: int, positions: int) -> Lattice:
        assert self.text[state.length] == anchor
        draw = np.random.default_rng(state.length)
        ids = np.stack([draw.permutation(VOCAB)[:CANDIDATES] for _ in range(positions)])
        scores = draw.normal(size=(positions, CANDIDATES, CANDIDATES))
        for position in range(positions):
            place = state.length + 1 + position
            if place >= len(self.text) or draw.random() > 0.85:
                continue
            slot = int(draw.integers(CANDIDATES))
            ids[position][ids[position] == self.text[place]] = ids[position][slot]
            ids[position][slot] = self.text[place]
            scores[position, :, slot] += draw.uniform(0, 3)
        scores[0] = scores[0, :1]
        edge = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
        return Lattice(ids.astype(np.int64), edge.astype(np.float32)).check()

    def parameter_bytes(self) -> int:
        return 0


def live_steps(engine: Engine, limit: int) -> list[int]:
    """Tokens that each step of a live request emits, the prefill's one left out."""
    session = engine.start(PROMPT, limit)
    steps = [len(session.step())]
    while session.finish_reason is None:
        steps.append(len(session.step()))
    return steps[1:]


def replayed_steps(replay: Replay, nodes: int) -> list[int]:
    """The same of a replay: the accepted tokens and the bonus, while there are tokens left."""
    replayed = replay.at(nodes)
    steps, left = [], replayed.emitted
    for accepted in replayed.accepted:
        steps.append(min(accepted + 1, left))
        left -= steps[-1]
    return steps


def stored(recorded: RecordedOutput, folder: Path) -> Recording:
    """The recording as the file of an answer gives it back."""
    path = folder / "recording.npz"
    np.savez(path, tokens=recorded.tokens, ids=recorded.ids, edge=recorded.edge)
    (recording,) = read_recordings(path).recordings
    return recording


def options_of(name: str, recording: Recording, folder: Path) -> dict[str, object]:
    """Options of the tree under test, with a file of fitted parameters where it has some."""
    if name == HOT:
        return {"tree": "best_first", "tree_temperature": 1.4}
    if TREES[name].builder is not None:
        return {"tree": name}
    outcomes = outcomes_of([recording])
    fitted = {
        "caddtree": CaDDTree(StepCost(1.0, ((1.0, 0.02), (6.0, 0.05)))),
        "sequoia": fit_sequoia(outcomes, POSITIONS),
        "calibrated": fit_calibrated(outcomes),
    }[name]
    file = folder / "tree.json"
    file.write_text(parameter_text(name, fitted), encoding="utf-8")
    return {"tree": name, "tree_file": str(file)}


def builder_of(options: dict[str, object]) -> TreeBuilder:
    return make_builder(
        options["tree"],
        file=options.get("tree_file", ""),
        temperature=options.get("tree_temperature", 1.0),
    )


@pytest.fixture(scope="module")
def drafted(make_target: Callable[..., Target]) -> tuple[Target, PlacedDrafter, list[int]]:
    target = make_target("llama", taps=(0,), stops=())
    session = Engine(target, None).start(PROMPT, 70)
    text: list[int] = []
    while session.finish_reason is None:
        text += session.step()
    return target, PlacedDrafter(PROMPT + text), text


@pytest.mark.parametrize("ends_early", [False, True])
@every_tree
def test_the_same_steps(
    name: str,
    ends_early: bool,
    drafted: tuple[Target, PlacedDrafter, list[int]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    target, drafter, text = drafted
    stop = {text[33]} if ends_early else set()
    monkeypatch.setattr(target, "eos_token_ids", frozenset(stop))
    limit = 60
    recorded = Engine(target, drafter).record(PROMPT, limit, POSITIONS)
    assert len(recorded.tokens) == (text.index(text[33]) + 1 if ends_early else limit)
    recording = stored(recorded, tmp_path)
    chosen = options_of(name, recording, tmp_path)
    builder = builder_of(chosen)
    limits = (limit,) if ends_early else (limit, *range(9, 21))
    for nodes in (2, 7, 16):
        options = EngineOptions(**chosen, nodes=nodes)
        for shorter in limits:
            # A shorter request is the beginning of the longer one, but its last trees differ.
            live = live_steps(Engine(target, drafter, options), shorter)
            begun = Recording("r", recorded.tokens[:shorter], recorded.ids, recorded.edge)
            replay = TreeReplay(begun, builder, POSITIONS, limit=shorter)
            assert replayed_steps(replay, nodes) == live
            if name == "chain":
                depth = min(POSITIONS, nodes - 1)
                assert replayed_steps(ChainReplay(begun, depth, shorter), nodes) == live


@every_tree
def test_the_fast_replay_takes_the_same_steps_as_the_plain_one(
    name: str, drafted: tuple[Target, PlacedDrafter, list[int]], tmp_path: Path
) -> None:
    target, drafter, _ = drafted
    recorded = Engine(target, drafter).record(PROMPT, 60, POSITIONS)
    recording = stored(recorded, tmp_path)
    builder = builder_of(options_of(name, recording, tmp_path))
    budgets = (2, 5, 13, 24)
    (fast,) = replays_of([recording], name, [builder], POSITIONS, budgets)
    plain = TreeReplay(recording, builder, POSITIONS)
    for nodes in budgets:
        assert fast.at(nodes) == plain.at(nodes)
