"""A chain drawn from the drafter, and the rejection rule that keeps it lossless (section 2.1).

The drafter's token x is kept with probability min(1, p(x) / q(x)); the first rejected one is
replaced by a draw from max(p - q, 0), normalised. What is emitted then follows p exactly, whatever
q is. p is the target's distribution with the request's filters, q the drafter's over its
candidates.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from specengine.decoding.sampling import Distribution, Sampler, Stream, draw, tempered
from specengine.lattice import Lattice
from specengine.trees.draft_tree import DraftTree
from specengine.verify.acceptance import Acceptance


@dataclass(frozen=True, slots=True)
class SampledChain(DraftTree):
    """A chain with the distributions that its tokens were drawn from.

    Attributes:
        ids: int64 [L, K], the drafter's candidates after each row but the last.
        chances: float64 [L, K], their probabilities.
    """

    ids: NDArray[np.int64]
    chances: Distribution


def draw_chain(lattice: Lattice, anchor: int, nodes: int, sampler: Sampler) -> SampledChain:
    """Walk the lattice by its own probabilities at the request's temperature.

    The filters of the request are not applied to the drafter: they would only lower acceptance.
    """
    length = min(nodes, lattice.positions + 1)
    tokens, logp = np.empty(length, dtype=np.int64), np.zeros(length, dtype=np.float32)
    tokens[0] = anchor
    chances = np.zeros((length - 1, lattice.candidates))
    slot, total, first = 0, 0.0, len(sampler.output)
    for position in range(length - 1):
        weights = tempered(lattice.edge[position, slot], sampler.sampling.temperature)
        chances[position] = weights / weights.sum()
        slot = draw(chances[position], sampler.uniform(Stream.DRAFT, first + position))
        total += min(float(np.log(chances[position, slot])), 0.0)
        tokens[position + 1], logp[position + 1] = lattice.ids[position, slot], total
    depth = np.arange(length, dtype=np.int32)
    return SampledChain(
        tokens=tokens,
        parent=depth - 1,
        depth=depth,
        logp=logp,
        ids=lattice.ids[: length - 1],
        chances=chances,
    )


def accept_sampled(chain: SampledChain, logits: torch.Tensor, sampler: Sampler) -> Acceptance:
    """Keep a prefix of the chain and one token more.

    Args:
        chain: L + 1 rows.
        logits: [L + 1, V], the target's after each row.
        sampler: takes the emitted tokens.
    """
    rows, tokens = [0], []
    for row in range(len(chain) - 1):
        target = sampler.distribution(logits[row])
        token = int(chain.tokens[row + 1])
        ids, chances = chain.ids[row], chain.chances[row]
        drafted = float(chances[ids == token][0])
        if sampler.uniform(Stream.ACCEPT) * drafted >= target[token]:
            rest = target.copy()
            rest[ids] = np.maximum(rest[ids] - chances, 0.0)
            # Equal distributions leave nothing but rounding; then a rejection is rounding as well.
            left = rest if rest.any() else target
            tokens.append(sampler.take(draw(left, sampler.uniform(Stream.RESIDUAL))))
            return Acceptance(rows=rows, tokens=tokens)
        tokens.append(sampler.take(token))
        rows.append(row + 1)
    tokens.append(sampler.choose(logits[len(chain) - 1]))
    return Acceptance(rows=rows, tokens=tokens)
