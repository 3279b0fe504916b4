"""Draws follow the target's distribution, whatever is drafted, and seeds repeat them."""

from collections import Counter
from functools import cache
from itertools import product
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy.stats import chisquare
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation import logits_process as peer

from specengine.decoding.engine import Engine
from specengine.decoding.options import EngineOptions
from specengine.decoding.sampled_chain import accept_sampled, draw_chain
from specengine.decoding.sampling import Sampler, Sampling, Stream, draw
from specengine.errors import NumericError, RequestError
from specengine.lattice import Lattice
from specengine.models import Target

PROMPT = [5, 9, 11, 30, 7]
SMALL_VOCAB = 6


def distribution(logits: torch.Tensor, how: Sampling, prompt=(), output=()) -> np.ndarray:
    return Sampler(how, list(prompt), list(output)).distribution(logits)


@pytest.mark.parametrize(
    ("how", "warpers"),
    [
        (Sampling(temperature=0.7), [peer.TemperatureLogitsWarper(0.7)]),
        (Sampling(temperature=1.0, top_k=5), [peer.TopKLogitsWarper(5)]),
        (Sampling(temperature=1.0, top_p=0.8), [peer.TopPLogitsWarper(0.8)]),
        (Sampling(temperature=1.0, min_p=0.3), [peer.MinPLogitsWarper(0.3)]),
        (
            Sampling(temperature=1.3, top_k=20, top_p=0.9, min_p=0.05),
            [
                peer.TemperatureLogitsWarper(1.3),
                peer.TopKLogitsWarper(20),
                peer.TopPLogitsWarper(0.9),
                peer.MinPLogitsWarper(0.05),
            ],
        ),
        (
            Sampling(temperature=1.0, repetition_penalty=1.4),
            [peer.RepetitionPenaltyLogitsProcessor(1.4)],
        ),
    ],
)
def test_filters_are_those_of_transformers(how, warpers):
    for seed in range(20):
        logits = torch.randn(200, generator=torch.Generator().manual_seed(seed)) * 2
        seen = torch.tensor([[3, 17, 17, 100]])
        scores = logits.double()[None]
        for warper in warpers:
            scores = warper(seen, scores)
        want = torch.softmax(scores[0], dim=-1).numpy()
        got = distribution(logits, how, prompt=[3, 17], output=[17, 100])
        np.testing.assert_allclose(got, want, atol=1e-12)


def test_presence_and_frequency_count_the_output_alone():
    logits = torch.zeros(5)
    how = Sampling(temperature=1.0, presence_penalty=0.5, frequency_penalty=0.25)
    got = distribution(logits, how, prompt=[0, 0], output=[1, 2, 2])
    weights = np.exp([0.0, -0.75, -1.0, 0.0, 0.0])
    np.testing.assert_allclose(got, weights / weights.sum(), atol=1e-12)


def test_repetition_comes_first_and_the_temperature_last():
    logits = torch.tensor([3.0, -3.0, 3.0, 1.0])
    how = Sampling(
        temperature=0.5, repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25
    )
    got = distribution(logits, how, prompt=[2], output=[0, 1, 0])
    weights = np.exp(np.array([3 / 2 - 1.0, -3 * 2 - 0.75, 3 / 2, 1.0]) / 0.5)
    np.testing.assert_allclose(got, weights / weights.sum(), atol=1e-12)


def test_equal_logits_fall_to_the_lowest_ids():
    logits = torch.tensor([1.0, 2.0, 2.0, 2.0, 0.0])
    assert np.flatnonzero(distribution(logits, Sampling(temperature=1.0, top_k=2))).tolist() == [
        1,
        2,
    ]
    got = distribution(torch.zeros(4), Sampling(temperature=1.0, top_p=0.5))
    assert got.tolist() == [0.5, 0.5, 0.0, 0.0]


def test_at_their_ends_filters_keep_the_likeliest_alone():
    logits = torch.tensor([1.0, 3.0, 2.0, 3.0, 0.0])
    both, first = [0.0, 0.5, 0.0, 0.5, 0.0], [0.0, 1.0, 0.0, 0.0, 0.0]
    assert distribution(logits, Sampling(temperature=1.0, min_p=1.0)).tolist() == both
    assert distribution(logits, Sampling(temperature=1.0, top_p=1e-300)).tolist() == first
    assert distribution(logits, Sampling(temperature=1.0, top_k=1)).tolist() == first


class _Watched(Sampler):
    """Keeps what it is asked for."""

    asked: ClassVar[list[tuple[Stream, int]]] = []

    def uniform(self, stream: Stream, position: int | None = None) -> float:
        self.asked.append((stream, len(self.output) if position is None else position))
        return Sampler.uniform(self, stream, position)


def test_drafting_and_verifying_share_no_stream_and_steps_no_number():
    used = set()
    for seed in range(12):
        sampler = _Watched(Sampling(temperature=1.0, seed=seed), [], output=[1, 2])
        _Watched.asked.clear()
        chain = draw_chain(_lattice(np.random.default_rng(seed), 3), 0, 4, sampler)
        # A number belongs to a place of the output: the next step's are others.
        assert _Watched.asked == [(Stream.DRAFT, place) for place in (2, 3, 4)]
        _Watched.asked.clear()
        emitted = len(accept_sampled(chain, torch.zeros(4, SMALL_VOCAB), sampler).tokens)
        places = [place for _, place in _Watched.asked]
        assert places == sorted(places)
        assert set(places) == set(range(2, 2 + emitted))
        assert len(set(_Watched.asked)) == len(_Watched.asked)
        used |= {stream for stream, _ in _Watched.asked}
    assert used == {Stream.ACCEPT, Stream.RESIDUAL, Stream.VERIFY}


def test_chains_are_drawn_at_the_requests_temperature():
    lattice = _lattice(np.random.default_rng(3), 3)
    for temperature in (0.3, 1.0, 1.7):
        sampler = Sampler(Sampling(temperature=temperature, seed=1), [])
        chain = draw_chain(lattice, 0, 4, sampler)
        slot = 0
        for position, chances in enumerate(chain.chances):
            weights = np.exp(lattice.edge[position, slot].astype(np.float64) / temperature)
            np.testing.assert_allclose(chances, weights / weights.sum(), atol=1e-12)
            slot = lattice.ids[position].tolist().index(chain.tokens[position + 1])


def test_draws_stay_within_the_distribution():
    given = np.array([0.0, 0.25, 0.0, 0.75, 0.0])
    assert [draw(given, u) for u in (0.0, 0.2499, 0.25, 0.999999, 1.0)] == [1, 1, 3, 3, 3]


def test_streams_and_positions_give_numbers_of_their_own():
    sampler = Sampler(Sampling(temperature=1.0, seed=7), [])
    # By name: two of one value would be one stream.
    numbers = {
        (name, place): sampler.uniform(Stream[name], place)
        for name, place in product(Stream.__members__, range(50))
    }
    assert len(set(numbers.values())) == len(numbers) == 200
    again = Sampler(Sampling(temperature=1.0, seed=7), [])
    assert all(again.uniform(Stream[s], p) == value for (s, p), value in numbers.items())
    assert Sampler(Sampling(temperature=1.0, seed=8), []).uniform(Stream.VERIFY, 0) not in set(
        numbers.values()
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"top_p": 0.0},
        {"top_k": -1},
        {"min_p": 1.5},
        {"presence_penalty": 3.0},
        {"repetition_penalty": 0.0},
        {"seed": -1},
    ],
)
def test_values_out_of_range_are_named(wrong):
    with pytest.raises(RequestError, match=next(iter(wrong))):
        Sampling(**wrong)


def test_non_finite_logits_are_refused():
    with pytest.raises(NumericError, match="non-finite"):
        distribution(torch.tensor([0.0, float("nan")]), Sampling(temperature=1.0))


def _seeded(seed: int) -> Sampling:
    return Sampling(temperature=0.9, top_p=0.95, presence_penalty=0.3, seed=seed)


@pytest.fixture(scope="module")
def ar_text(make_target, run_request):
    """`ar_text(family, sampling)`: what the family says without a drafter."""

    @cache
    def text(family, how):
        return run_request(Engine(make_target(family, stops=()), None), PROMPT, 24, sampling=how)

    return text


def test_a_seed_gives_a_text_of_its_own(family, ar_text):
    greedy, eleven, twelve = (ar_text(family, how) for how in (None, _seeded(11), _seeded(12)))
    assert greedy != eleven != twelve


def test_a_seed_gives_the_ar_text_for_every_draft(
    family, options, make_target, knowing_drafter, run_request, ar_text
):
    target = make_target(family, taps=(0,), stops=())
    text = ar_text(family, _seeded(11))
    engine = Engine(target, knowing_drafter(PROMPT + text, target, 0.7), options)
    assert run_request(engine, PROMPT, 24, sampling=_seeded(11)) == text
    assert engine.counters.steps < 23


def test_temperature_zero_is_the_greedy_text(make_target, run_request):
    engine = Engine(make_target("llama", stops=()), None)
    greedy = run_request(engine, PROMPT, 24)
    assert run_request(engine, PROMPT, 24, sampling=Sampling()) == greedy
    penalized = run_request(engine, PROMPT, 24, sampling=Sampling(repetition_penalty=5.0))
    assert penalized != greedy
    assert len(set(penalized)) > len(set(greedy))


def _lattice(generator: np.random.Generator, positions: int) -> Lattice:
    """Candidates and scores that know nothing of the target."""
    ids = np.stack([generator.permutation(SMALL_VOCAB)[:4] for _ in range(positions)])
    scores = generator.normal(size=(positions, 4, 4)) * 1.5
    scores[0] = scores[0, :1]
    edge = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    return Lattice(ids.astype(np.int64), edge.astype(np.float32))


def _assert_follows(cells: Counter, chances: dict, draws: int) -> None:
    keys = sorted(chances, key=lambda key: -chances[key])
    frequent = [key for key in keys if chances[key] * draws >= 5]
    rest = draws - sum(cells[key] for key in frequent)
    expected = [chances[key] * draws for key in frequent]
    observed = [cells[key] for key in frequent]
    if draws - sum(expected) > 1e-6 * draws:
        observed.append(rest)
        expected.append(draws - sum(expected))
    assert set(cells) <= set(chances)
    total = sum(expected)
    assert chisquare(observed, [e * draws / total for e in expected]).pvalue > 1e-3


def test_rejection_emits_the_target_at_every_position():
    torch.manual_seed(0)
    logits = torch.randn(8, SMALL_VOCAB) * 1.5
    generator = np.random.default_rng(1)
    lattices = [_lattice(generator, 3) for _ in range(5)]
    draws, pairs, accepted = 6000, [Counter() for _ in range(3)], 0
    for seed in range(draws):
        sampler = Sampler(Sampling(temperature=0.8, seed=seed), [])
        while len(sampler.output) < 4:
            place = len(sampler.output)
            chain = draw_chain(lattices[(seed + place) % 5], 0, 4, sampler)
            accepted += len(accept_sampled(chain, logits[place : place + 4], sampler).rows) - 1
        for index, pair in enumerate(pairs):
            pair[tuple(sampler.output[index : index + 2])] += 1
    shaped = [distribution(row, Sampling(temperature=0.8)) for row in logits]
    for index, cells in enumerate(pairs):
        chances = {
            (a, b): shaped[index][a] * shaped[index + 1][b]
            for a, b in product(range(SMALL_VOCAB), repeat=2)
        }
        _assert_follows(cells, chances, draws)
    assert accepted > draws


class _Lowest(Sampler):
    """Every number is the lowest that a stream can give."""

    def uniform(self, stream: Stream, position: int | None = None) -> float:
        return 0.0


def test_no_number_accepts_a_token_that_the_target_cannot_say():
    logits = torch.tensor([[0.0, 3.0, 2.0, 1.0, 1.0, 1.0]] * 2)
    edge = np.zeros((1, 1, 1), dtype=np.float32)
    sampler = _Lowest(Sampling(temperature=1.0, top_k=2), [])
    chain = draw_chain(Lattice(np.array([[0]]), edge), 5, 2, sampler)
    assert chain.tokens.tolist() == [5, 0]
    assert accept_sampled(chain, logits, sampler).tokens == [1]


def test_behind_a_whole_chain_the_last_row_is_drawn_from():
    logits = torch.eye(SMALL_VOCAB)[1:4] * 200.0
    sampler = Sampler(Sampling(temperature=1.0), [])
    sure = Lattice(np.array([[1], [2]]), np.zeros((2, 1, 1), dtype=np.float32))
    accepted = accept_sampled(draw_chain(sure, 0, 3, sampler), logits, sampler)
    assert (accepted.rows, accepted.tokens) == ([0, 1, 2], [1, 2, 3])


@pytest.mark.parametrize("temperature", [5e-324, 1e-320, 1e-308, 1e-40, 1e-6])
@pytest.mark.filterwarnings("error")
def test_at_the_smallest_temperatures_a_chain_emits_the_argmax(temperature):
    logits = torch.randn(4, SMALL_VOCAB, generator=torch.Generator().manual_seed(2))
    want = logits.argmax(dim=-1).tolist()
    rejected = 0
    for seed in range(20):
        sampler = Sampler(Sampling(temperature=temperature, seed=seed), [])
        chain = draw_chain(_lattice(np.random.default_rng(seed), 3), 0, 4, sampler)
        assert np.isfinite(chain.chances).all()
        tokens = accept_sampled(chain, logits, sampler).tokens
        assert tokens == want[: len(tokens)]
        rejected += len(tokens) < 4
    assert rejected > 0


class _BlindDrafter:
    """A drafter whose lattice has nothing to do with the target."""

    kind, taps, trained_positions = "dflash2", (), 3

    def __init__(self) -> None:
        self.generator = np.random.default_rng(2)

    def new_state(self, capacity: int) -> object:
        return type("State", (), {"length": 0})()

    def extend(self, state: object, features: torch.Tensor, tokens: object) -> None:
        return

    def draft(self, state: object, anchor: int, positions: int) -> Lattice:
        return _lattice(self.generator, positions)

    def parameter_bytes(self) -> int:
        return 0


@pytest.fixture(scope="module")
def small_target() -> Target:
    torch.manual_seed(4)
    config = LlamaConfig(
        vocab_size=SMALL_VOCAB,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    model.lm_head.weight.data.mul_(10.0)
    return Target(model, eos_token_ids=frozenset())


@pytest.mark.parametrize(
    ("tree", "filters"),
    [
        ("ar", {"top_k": 5}),
        ("chain", {"top_k": 5}),
        ("best_first", {"top_k": 5}),
        ("sampled_chain", {"top_k": 5}),
        ("best_first", {"top_p": 0.8, "min_p": 0.05}),
        ("sampled_chain", {"top_p": 0.8, "min_p": 0.05}),
        ("sampled_chain", {"presence_penalty": 1.5, "repetition_penalty": 1.3}),
    ],
)
def test_texts_of_the_engine_follow_the_target(small_target, run_request, tree, filters):
    how = {"temperature": 0.9, **filters}
    first = _next(small_target, [1, 2], how)
    chances = {}
    for a, b in product(range(SMALL_VOCAB), repeat=2):
        chances[a, b] = first[a] * _next(small_target, [1, 2, a], how)[b]
    chances = {key: value for key, value in chances.items() if value > 0}
    drafter = None if tree == "ar" else _BlindDrafter()
    options = EngineOptions() if tree == "ar" else EngineOptions(tree=tree, nodes=5)
    engine = Engine(small_target, drafter, options)
    draws = 700
    cells = Counter(
        tuple(run_request(engine, [1, 2], 3, sampling=Sampling(seed=seed, **how))[:2])
        for seed in range(draws)
    )
    _assert_follows(cells, chances, draws)


def _next(target: Target, tokens: list[int], how: dict) -> np.ndarray:
    cache = target.new_cache(16)
    hidden = target.forward(cache, torch.tensor(tokens)).hidden
    sampler = Sampler(Sampling(**how), tokens[:2])
    for token in tokens[2:]:
        sampler.take(token)
    return sampler.distribution(target.logits(hidden[-1:])[0])
