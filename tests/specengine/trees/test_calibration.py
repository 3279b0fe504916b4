"""Acceptance fitted on recordings whose truth is known."""

from dataclasses import dataclass

import numpy as np
import pytest

from specengine.errors import OptionError
from specengine.lattice import Lattice
from specengine.trees import Calibrated
from specengine.trees.calibrated import BINS_PER_NAT
from specengine.trees.calibration import NATS, fit_calibrated, fit_sequoia, outcomes_of

POSITIONS, CANDIDATES = 4, 5


@dataclass
class Drawn:
    """A recording, as `Recorded` wants it."""

    tokens: np.ndarray
    ids: np.ndarray
    edge: np.ndarray


def draw(seed: int, count: int, trust: float) -> Drawn:
    """Tokens that take candidate b of the lattice with probability `trust` * exp(edge).

    Every anchor's continuation is drawn for it alone, so tokens are unique per anchor and only
    the lattice of anchor 0, 5, 10, ... is looked at by one that knows.
    """
    rng = np.random.default_rng(seed)
    scores = rng.normal(0, 2, (count, POSITIONS, CANDIDATES, CANDIDATES))
    scores[:, 0] = scores[:, 0, :1]
    edge = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    tokens = np.arange(count + 1) + 10**6
    ids = np.arange(count * POSITIONS * CANDIDATES).reshape(count, POSITIONS, CANDIDATES)
    for anchor in range(count):
        slot = 0
        for position in range(min(POSITIONS, count - anchor)):
            if rng.random() > trust:
                break
            slot = int(rng.choice(CANDIDATES, p=np.exp(edge[anchor, position, slot])))
            ids[anchor, position, slot] = tokens[anchor + 1 + position]
    return Drawn(tokens, ids, edge.astype(np.float32))


def test_outcomes_follow_the_continuation() -> None:
    ids = np.array([[[7, 8], [5, 9]], [[8, 9], [1, 2]]])
    edge = np.log(np.array([[[[0.2, 0.8]] * 2, [[0.6, 0.4], [0.3, 0.7]]]] * 2, dtype=np.float32))
    found = outcomes_of([Drawn(np.array([3, 7, 9]), ids, edge)])
    # Anchor 0: 7 has rank 1, then 9 below it rank 1. Anchor 1: 9 is its row's best.
    assert found.position.tolist() == [0, 0, 1]
    assert found.rank.tolist() == [1, 0, 1]
    np.testing.assert_allclose(np.exp(found.edge), [[0.8, 0.2], [0.8, 0.2], [0.6, 0.4]], atol=1e-6)


def test_a_position_without_the_right_candidate_ends_the_walk() -> None:
    item = draw(0, 20, 0.0)
    found = outcomes_of([item])
    assert found.rank.tolist() == [-1] * 20
    with pytest.raises(OptionError, match="recordings"):
        outcomes_of([Drawn(item.tokens[:1], item.ids[:0], item.edge[:0])])


def test_sequoia_learns_the_rates() -> None:
    outcomes = outcomes_of([draw(1, 3000, 0.8)])
    rates = np.array(fit_sequoia(outcomes, POSITIONS).acceptance)
    assert rates.shape == (POSITIONS, CANDIDATES)
    np.testing.assert_allclose(rates.sum(axis=1), 0.8, atol=0.05)
    assert (np.diff(rates, axis=1) < 0).all()
    for rank in range(CANDIDATES):
        rate = (outcomes.rank[outcomes.position == 0] == rank).mean()
        assert rates[0, rank] == pytest.approx(rate, abs=0.005)


def test_curves_learn_how_far_the_drafter_can_be_trusted() -> None:
    calibrated = fit_calibrated(outcomes_of([draw(2, 4000, 0.7)]))
    for rank, nats in ((0, 0.3), (0, 0.8), (1, 1.5), (2, 2.0)):
        found = calibrated.curves[0, rank, int(nats * BINS_PER_NAT)]
        assert found == pytest.approx(np.log(0.7) - nats, abs=0.25)


def test_curves_rise_with_the_edge() -> None:
    curves = fit_calibrated(outcomes_of([draw(3, 200, 0.5)])).curves
    assert curves.shape[2] == NATS * BINS_PER_NAT
    assert (np.diff(curves, axis=2) <= 1e-12).all()
    assert (curves <= 0).all()


def test_without_accepted_tokens_the_drafter_is_believed() -> None:
    calibrated = fit_calibrated(outcomes_of([draw(4, 20, 0.0)]))
    np.testing.assert_allclose(
        calibrated.curves[0, 0], -(np.arange(NATS * BINS_PER_NAT) + 0.5) / BINS_PER_NAT
    )


def test_a_second_candidate_that_is_better_than_it_looks_comes_first() -> None:
    # Rank 0 is never trusted, rank 1 always: the order of siblings turns around.
    curves = np.stack([np.full((1, 8), -3.0), np.full((1, 8), -0.1)], axis=1)
    edge = np.log(np.array([[[0.6, 0.4]] * 2], dtype=np.float32))
    tree = Calibrated(curves)(Lattice(np.array([[4, 5]]), edge), 7, 3)
    assert tree.tokens.tolist() == [7, 5, 4]
    np.testing.assert_allclose(np.exp(tree.logp), [1, 0.4, 0.6], atol=1e-6)


@pytest.mark.parametrize(
    "curves",
    [np.zeros((2, 2)), np.zeros((0, 1, 1)), np.full((1, 1, 1), 0.1), np.full((1, 1, 1), np.nan)],
)
def test_curves_that_let_a_path_gain_are_refused(curves: np.ndarray) -> None:
    with pytest.raises(OptionError, match="calibrated curves"):
        Calibrated(curves)
