"""A target of every family, drafters of every quality, for tests of the decoding engine."""

from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch

from specengine.decoding.engine import Engine
from specengine.decoding.options import EngineOptions
from specengine.drafters.config import DFlash2Config
from specengine.drafters.dflash2 import DFlash2Drafter
from specengine.drafters.network import DFlash2Network
from specengine.lattice import Lattice
from specengine.models import Target

VOCAB = 61
CANDIDATES = 4


class KnowingState:
    """Counts what a drafter was fed, so that the engine's bookkeeping can be checked."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0


class KnowingDrafter:
    """Knows the greedy text and proposes it with probability `rho` per position.

    The right token is in a random slot of its row, and likely; wrong rows hold other tokens. High
    acceptance on random models is not to be had otherwise.
    """

    kind = "dflash2"
    taps = (0,)
    trained_positions = 7

    def __init__(self, text: list[int], hidden: int, rho: float, seed: int = 0) -> None:
        self.text = text
        self.hidden = hidden
        self.rho = rho
        self.generator = np.random.default_rng(seed)

    def new_state(self, capacity: int) -> KnowingState:
        return KnowingState(capacity)

    def extend(self, state: KnowingState, features: torch.Tensor, tokens: np.ndarray) -> None:
        assert features.shape[1] == self.hidden
        known = self.text[state.length : state.length + len(features)]
        assert tokens[: len(known)].tolist() == known
        state.length += len(features)
        assert state.length <= state.capacity

    def draft(self, state: KnowingState, anchor: int, positions: int) -> Lattice:
        # Context is everything before the anchor: one position too many or too few shows here.
        if state.length < len(self.text):
            assert self.text[state.length] == anchor
        draw = self.generator
        ids = np.stack([draw.permutation(VOCAB)[:CANDIDATES] for _ in range(positions)])
        scores = draw.normal(size=(positions, CANDIDATES, CANDIDATES))
        for position in range(positions):
            place = state.length + 1 + position
            if place >= len(self.text) or draw.random() >= self.rho:
                continue
            slot = int(draw.integers(CANDIDATES))
            ids[position][ids[position] == self.text[place]] = ids[position][slot]
            ids[position][slot] = self.text[place]
            scores[position, :, slot] += 3.0
        scores[0] = scores[0, :1]
        edge = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
        return Lattice(ids.astype(np.int64), edge.astype(np.float32)).check()

    def parameter_bytes(self) -> int:
        return 0


def generate(engine: Engine, prompt: list[int], limit: int, **kwargs: object) -> list[int]:
    """All tokens of one request."""
    session = engine.start(prompt, limit, **kwargs)
    output: list[int] = []
    while session.finish_reason is None:
        output += session.step()
    return output


@pytest.fixture(scope="session")
def make_target(tiny_model: Callable[..., torch.nn.Module]) -> Callable[..., Target]:
    """`make_target(family, taps=(), stops={2})`: a tiny random target in float32."""

    def make(family: str, taps: tuple[int, ...] = (), stops: Iterable[int] = (2,)) -> Target:
        target = Target(tiny_model(family), taps=taps)
        target.eos_token_ids = frozenset(stops)
        return target

    return make


@pytest.fixture(scope="session")
def random_drafter() -> Callable[[Target], DFlash2Drafter]:
    """`random_drafter(target)`: an untrained DFlash2 drafter; next to nothing is accepted."""

    def make(target: Target) -> DFlash2Drafter:
        config = DFlash2Config(
            hidden_size=target.hidden_size,
            intermediate_size=96,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            rms_norm_eps=1e-6,
            rope_theta=10000.0,
            vocab_size=VOCAB,
            max_position_embeddings=256,
            num_target_layers=target.num_layers,
            layer_types=("full_attention",),
            sliding_window=None,
            is_causal=(False,),
            block_size=8,
            conv_kernel_size=3,
            conv_group_size=16,
            mask_token_id=0,
            selector_rank=8,
            selector_top_k=8,
            target_layer_ids=(0,),
        )
        torch.manual_seed(3)
        return DFlash2Drafter(DFlash2Network(config).eval().to(target.device), target)

    return make


@pytest.fixture(scope="session")
def knowing_drafter() -> Callable[..., KnowingDrafter]:
    """`knowing_drafter(text, target, rho, seed=0)`: proposes the known text."""

    def make(text: list[int], target: Target, rho: float, seed: int = 0) -> KnowingDrafter:
        return KnowingDrafter(text, target.hidden_size, rho, seed)

    return make


@pytest.fixture(scope="session")
def run_request() -> Callable[..., list[int]]:
    """`run_request(engine, prompt, limit)`: all tokens of one request."""
    return generate


OPTIONS = [
    EngineOptions(),
    EngineOptions(positions=3),
    EngineOptions(nodes=4),
    EngineOptions(positions=15),
    EngineOptions(tree="best_first"),
    EngineOptions(tree="best_first", nodes=2),
    EngineOptions(tree="best_first", nodes=32),
    EngineOptions(tree="best_first", nodes=24, positions=15),
    EngineOptions(tree="best_first", nodes=12, tree_temperature=1.6),
    EngineOptions(tree="ddtree", nodes=12),
    EngineOptions(tree="eagle2", nodes=12),
    EngineOptions(tree="opt_tree", nodes=12),
]


@pytest.fixture(
    params=OPTIONS, ids=lambda o: f"{o.tree}-p{o.positions}-n{o.nodes}-t{o.tree_temperature}"
)
def options(request: pytest.FixtureRequest) -> EngineOptions:
    """Every shape of draft in turn."""
    return request.param
