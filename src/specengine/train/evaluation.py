"""Evaluation by the rule of the decoding loop.

For every output position of a greedy answer the drafter drafts with the true past; the loop is then
replayed: start at the first output token, build the tree, accept what matches the answer, go on
behind the bonus token. Emitted tokens per step (tau) count the bonus.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from specengine.drafters.dflash2 import top_candidates
from specengine.drafters.network import DFlash2Network
from specengine.lattice import Lattice
from specengine.train.batches import BlockBatch
from specengine.train.loss import run_blocks
from specengine.train.shards import TokenShard
from specengine.train.teacher import Teacher
from specengine.trees.draft_tree import DraftTree
from specengine.trees.registry import build


@dataclass(slots=True)
class Recorded:
    """Lattices of one answer: entry i drafts after answer token i.

    Attributes:
        answer: int64 [T], the greedy answer.
        ids: int64 [T - 1, D, K].
        edge: float32 [T - 1, D, K, K].
    """

    answer: NDArray[np.int64]
    ids: NDArray[np.int64]
    edge: NDArray[np.float32]


@dataclass(slots=True)
class Tally:
    """Sums over answers; `table` turns them into rates."""

    steps: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    seen: NDArray[np.int64] | None = None
    first: NDArray[np.int64] | None = None
    held: NDArray[np.int64] | None = None

    def table(self) -> dict[str, object]:
        assert self.seen is not None
        assert self.first is not None
        assert self.held is not None
        count = np.maximum(self.seen, 1)
        return {
            "tokens": self.tokens,
            "tau": {name: round(self.tokens / n, 4) for name, n in self.steps.items()},
            "accuracy": [round(float(x), 4) for x in self.first / count],
            "recall": [round(float(x), 4) for x in self.held / count],
        }


@torch.inference_mode()
def record(
    network: DFlash2Network,
    teacher: Teacher,
    shard: TokenShard,
    positions: int,
    *,
    blocks: int = 64,
) -> Iterator[Recorded]:
    """Lattices of each sequence of a shard, `blocks` anchors per forward."""
    for index in range(len(shard)):
        sequence = torch.from_numpy(shard.sequence(index).astype(np.int64)).to(teacher.device)
        first = int(shard.prompts[index])
        if len(sequence) - first < 2:
            continue
        features = teacher.features(sequence[None], network.config.target_layer_ids)
        features = features.to(network.fc.weight.dtype)
        parts = [
            _lattices(network, teacher, sequence, features, anchors, positions)
            for anchors in torch.arange(first, len(sequence) - 1).split(blocks)
        ]
        yield Recorded(
            answer=sequence[first:].cpu().numpy(),
            ids=np.concatenate([part[0] for part in parts]),
            edge=np.concatenate([part[1] for part in parts]),
        )


def _lattices(
    network: DFlash2Network,
    teacher: Teacher,
    sequence: torch.Tensor,
    features: torch.Tensor,
    anchors: torch.Tensor,
    positions: int,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    starts = anchors.to(teacher.device)[None]
    unused = torch.empty(1, len(anchors), positions, device=teacher.device)
    batch = BlockBatch(sequence[None], starts, unused.long(), unused, unused.long())
    hidden = run_blocks(network, teacher, features, batch)[0, :, 1:]
    unary = network.transform(teacher.head(hidden.flatten(0, 1).to(teacher.model.dtype)))
    top, ids = top_candidates(unary, network.config.selector_top_k)
    top, ids = (part.unflatten(0, (len(anchors), positions)) for part in (top, ids))
    roots = sequence[starts[0]][:, None, None].expand(-1, 1, ids.shape[-1])
    previous = torch.cat((roots, ids[:, :-1]), dim=1)
    scores = top[:, :, None] + network.candidate_selector.pair_scores(hidden, previous, ids)
    return ids.cpu().numpy(), scores.log_softmax(-1).float().cpu().numpy()


def replay(recorded: Recorded, tree: str, positions: int, nodes: int) -> int:
    """Steps that decoding this answer takes; the first token comes from the prefill."""
    place, steps = 0, 0
    while place < len(recorded.answer) - 1:
        lattice = Lattice(recorded.ids[place, :positions], recorded.edge[place, :positions])
        draft = build(tree, lattice, int(recorded.answer[place]), nodes)
        place += _accepted(draft, recorded.answer[place + 1 :]) + 1
        steps += 1
    return steps


def oracle(recorded: Recorded, positions: int) -> int:
    """Steps if every token that is a candidate were accepted."""
    place, steps = 0, 0
    while place < len(recorded.answer) - 1:
        ahead = recorded.answer[place + 1 : place + 1 + positions]
        held = (recorded.ids[place, : len(ahead)] == ahead[:, None]).any(-1)
        place += int(np.cumprod(held).sum()) + 1
        steps += 1
    return steps


def _accepted(draft: DraftTree, answer: NDArray[np.int64]) -> int:
    children = {
        (int(parent), int(token)): node
        for node, (parent, token) in enumerate(zip(draft.parent, draft.tokens, strict=True))
    }
    node, count = 0, 0
    for token in answer.tolist():
        child = children.get((node, token))
        if child is None:
            break
        node, count = child, count + 1
    return count


def tally(
    total: Tally, recorded: Recorded, widths: tuple[int, ...], nodes: tuple[int, ...]
) -> None:
    """Add one answer: chain, best-first trees of each size and oracle, per drafted positions."""
    total.tokens += len(recorded.answer) - 1
    names: dict[str, int] = {}
    for width in widths:
        names[f"chain/{width}"] = replay(recorded, "chain", width, width + 1)
        for size in nodes:
            names[f"best_first/{width}/{size}"] = replay(recorded, "best_first", width, size)
        names[f"oracle/{width}"] = oracle(recorded, width)
    for name, steps in names.items():
        total.steps[name] = total.steps.get(name, 0) + steps
    depth = recorded.ids.shape[1]
    ahead = np.arange(len(recorded.ids))[:, None] + 1 + np.arange(depth)
    inside = ahead < len(recorded.answer)
    labels = recorded.answer[np.minimum(ahead, len(recorded.answer) - 1)]
    hit = (recorded.ids == labels[..., None]) & inside[..., None]
    for name, value in (("seen", inside), ("first", hit[..., 0]), ("held", hit.any(-1))):
        old = getattr(total, name)
        setattr(total, name, value.sum(0) if old is None else old + value.sum(0))
