"""Best-first trees on the device, by fixed shapes: the nodes of `build_best_first`, in its order.

Level after level keeps the W = N - 1 best paths of its depth, then one sort over all levels takes
the N - 1 best; a node of the tree is among the N - 1 best of its level, so nothing is lost. Every
shape follows from D, K and N alone and nothing is read back to the host, so the whole can be
captured in a CUDA graph. Cost: D stable sorts of W x K paths and one of D x W.

Ties: a level's paths stand in the order of their ranks, so that a stable sort leaves equal scores
in the order of depth, then ranks, as on the CPU. Scores are summed in float64 from the root, as
there, and therefore equal bit for bit.
"""

from dataclasses import dataclass

import torch

from specengine.errors import OptionError

_IMPOSSIBLE = float("-inf")


@dataclass(frozen=True, slots=True)
class DeviceTrees:
    """Trees of B lattices, N rows each, on the lattices' device.

    Attributes:
        tokens: int64 [B, N]; row 0 is the anchor; -1 beyond a tree's size.
        parent: int64 [B, N]; -1 for the root and beyond a tree's size.
        depth: int64 [B, N]; -1 beyond a tree's size.
        logp: float32 [B, N] in nats; -inf beyond a tree's size.
        size: int64 [B], rows of each tree; less than N where a lattice has fewer paths.
    """

    tokens: torch.Tensor
    parent: torch.Tensor
    depth: torch.Tensor
    logp: torch.Tensor
    size: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Level:
    """W paths of one depth in the order of their ranks; impossible ones score -inf."""

    score: torch.Tensor
    slot: torch.Tensor
    parent: torch.Tensor
    """Place of the parent in the level above."""


def build_best_first_device(
    ids: torch.Tensor, edge: torch.Tensor, anchor: torch.Tensor, nodes: int
) -> DeviceTrees:
    """Build B trees of `nodes` rows, the root included.

    Args:
        ids: int64 [B, D, K].
        edge: float32 [B, D, K, K] in nats, finite.
        anchor: int64 [B].
        nodes: N.

    Raises:
        OptionError: `nodes` is below 2: without a drafted row there is nothing to build.
    """
    if nodes < 2:
        raise OptionError(
            f"is {nodes}", where="option 'nodes'", fix="give at least 2: the root is counted"
        )
    levels = _levels(edge, nodes - 1)
    return _collect(ids, anchor, levels, nodes)


def _levels(edge: torch.Tensor, width: int) -> list[_Level]:
    count, positions, candidates, _ = edge.shape
    order = torch.sort(edge, dim=-1, descending=True, stable=True).indices
    # Rounding of a log-softmax may leave a score just above 0; no path may gain by it.
    ordered = edge.gather(-1, order).clamp(max=0.0).double()
    score = torch.full((count, width), _IMPOSSIBLE, dtype=torch.float64, device=edge.device)
    score[:, 0] = 0.0
    slot = torch.zeros((count, width), dtype=torch.int64, device=edge.device)
    levels = []
    for position in range(positions):
        rows = slot[:, :, None].expand(-1, -1, candidates)
        paths = score[:, :, None] + ordered[:, position].gather(1, rows)
        best = torch.sort(paths.flatten(1), dim=1, descending=True, stable=True)
        # Back into the order of ranks: parents stand in it, and K children follow each parent.
        chosen = torch.sort(best.indices[:, :width], dim=1).values
        parent = chosen // candidates
        slot = order[:, position].gather(1, rows).flatten(1).gather(1, chosen)
        score = paths.flatten(1).gather(1, chosen)
        levels.append(_Level(score, slot, parent))
    return levels


def _collect(
    ids: torch.Tensor, anchor: torch.Tensor, levels: list[_Level], nodes: int
) -> DeviceTrees:
    """The best paths of all levels, with the root before them."""
    count, width = levels[0].score.shape
    scores = torch.cat([level.score for level in levels], dim=1)
    best = torch.sort(scores, dim=1, descending=True, stable=True)
    chosen, score = best.indices[:, : nodes - 1], best.values[:, : nodes - 1]
    exists = score > _IMPOSSIBLE
    depth = chosen // width
    tokens = torch.cat(
        [ids[:, d].gather(1, level.slot) for d, level in enumerate(levels)], dim=1
    ).gather(1, chosen)
    # Node of every path of every level, the root's for the level above the first.
    place = torch.zeros((count, (len(levels) + 1) * width), dtype=torch.int64, device=ids.device)
    numbers = torch.arange(1, nodes, device=ids.device).expand(count, -1)
    place[:, width:].scatter_(1, chosen, numbers)
    above = torch.cat([level.parent for level in levels], dim=1).gather(1, chosen)
    parent = place.gather(1, depth * width + above)
    return DeviceTrees(
        tokens=torch.cat([anchor[:, None], tokens.where(exists, -1)], dim=1),
        parent=torch.nn.functional.pad(parent.where(exists, -1), (1, 0), value=-1),
        depth=torch.nn.functional.pad((depth + 1).where(exists, -1), (1, 0), value=0),
        logp=torch.nn.functional.pad(score, (1, 0), value=0.0).float(),
        size=exists.sum(1) + 1,
    )
