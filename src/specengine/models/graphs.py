"""Verify passes captured as CUDA graphs: one launch per pass instead of hundreds.

A decoding pass has few rows, and launching its kernels from Python takes longer than they run. A
graph is captured for a cache, a row count (trees are padded up to it) and a span of slots; a pass
then is one copy of its inputs and one replay.
"""

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch

from specengine.errors import OptionError, RequestError
from specengine.models.cache import TargetCache
from specengine.models.static_rows import StaticRows, pack
from specengine.trees.draft_tree import DraftTree
from specengine.verify.gated_delta import PathRows, WholeChain

if TYPE_CHECKING:
    from specengine.models.target import Target

ROW_STEP = 8
"""Trees are padded to a multiple of this many rows, a single row is not."""
_FIRST_SPAN = 256


def padded_rows(count: int) -> int:
    """Rows of the captured pass that a tree of `count` rows takes."""
    return 1 if count == 1 else -(-count // ROW_STEP) * ROW_STEP


def span_for(needed: int, capacity: int) -> int:
    """Slots that a captured pass reads: doubled until `needed` fit, so that captures are few."""
    span = _FIRST_SPAN
    while span < needed:
        span *= 2
    return min(span, capacity)


@functools.cache
def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """One per device: kernels keep a workspace for each stream they have run on."""
    return torch.cuda.Stream(device)


@dataclass(frozen=True, slots=True)
class _Captured:
    graph: torch.cuda.CUDAGraph
    rows: StaticRows
    staging: torch.Tensor
    logits: torch.Tensor
    features: torch.Tensor
    pending: dict[int, PathRows | WholeChain]


class PassGraphs:
    """The captured passes of one target. Outputs are overwritten by the next pass of a cache.

    Raises:
        OptionError: the target is not on a GPU.
    """

    def __init__(self, target: "Target") -> None:
        if target.device.type != "cuda":
            raise OptionError(
                f"is not available (weights are on {target.device.type})",
                where="option 'cuda_graphs'",
                fix="switch it off, or run on a GPU",
            )
        self._target = target
        self._captured: WeakKeyDictionary[TargetCache, dict[tuple[int, int], _Captured]] = (
            WeakKeyDictionary()
        )

    def run(self, cache: TargetCache, tree: DraftTree) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits [n, V] and features [n, taps * d] of a tree's rows, to be committed or dropped.

        Raises:
            RequestError: the rows and their padding do not fit.
        """
        count = padded_rows(len(tree))
        if cache.length + count > cache.capacity:
            raise RequestError(
                f"needs {cache.length + count} cache positions and has {cache.capacity}",
                where="prompt",
                fix="shorten the prompt or the output limit",
            )
        span = span_for(cache.length + count, cache.capacity)
        inputs = torch.from_numpy(pack(cache.length, tree, count))
        known = self._captured.setdefault(cache, {})
        found = known.get((count, span))
        if found is None:
            found = known[count, span] = self._capture(cache, inputs, count, span)
        found.staging.copy_(inputs)
        found.rows.inputs.copy_(found.staging, non_blocking=True)
        found.graph.replay()
        cache.restore(found.pending)
        return found.logits[: len(tree)], found.features[: len(tree)]

    def _capture(
        self, cache: TargetCache, inputs: torch.Tensor, count: int, span: int
    ) -> _Captured:
        target = self._target
        rows = StaticRows(
            count, span, groups=target.layout.groups, dtype=target.dtype, device=target.device
        )
        rows.inputs.copy_(inputs)
        # Libraries choose algorithms and allocate workspaces on first use, which no graph may hold.
        current, side = torch.cuda.current_stream(target.device), _capture_stream(target.device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            target.logits(target.run(cache, rows.tokens, rows).hidden)
        current.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        rows.begin()
        with torch.cuda.graph(graph, stream=side):
            forward = target.run(cache, rows.tokens, rows)
            logits = target.logits(forward.hidden)
        staging = torch.empty_like(inputs, pin_memory=True)
        return _Captured(graph, rows, staging, logits, forward.features, cache.pending_delta())
