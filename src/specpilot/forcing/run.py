"""Token forcing from outputs to a result, on a running stock server."""

from collections.abc import Sequence

from specpilot.engines.base import RunningEngine
from specpilot.forcing.audit import audit_events, find_events
from specpilot.forcing.outputs import ForcedOutput
from specpilot.forcing.reference import StockReference, make_reference
from specpilot.forcing.rules import ForcingResult, judge
from specpilot.forcing.scorer import score_outputs


async def measure_reference(
    scorer: RunningEngine,
    stock_outputs: Sequence[ForcedOutput],
    autoregressive_outputs: Sequence[ForcedOutput],
) -> StockReference:
    """Score stock's and AR's outputs on the same requests: delta and stock's own mismatches."""
    return make_reference(
        await score_outputs(scorer, stock_outputs),
        await score_outputs(scorer, autoregressive_outputs),
    )


async def force_outputs(
    scorer: RunningEngine,
    outputs: Sequence[ForcedOutput],
    reference: StockReference,
    *,
    stop_ids: frozenset[int],
    stock_outputs: Sequence[ForcedOutput] = (),
    failed_requests: int = 0,
) -> ForcingResult:
    """Score, audit and judge.

    Args:
        scorer: a running stock server.
        outputs: those of the timed run, or of any other server.
        stop_ids: tokens that may end an output, read from the target's folder.
        stock_outputs: what stock emitted on the same requests, for the audit.
        failed_requests: requests of the same run without an output.

    Raises:
        EngineFailure: the scorer failed.
    """
    scores = await score_outputs(scorer, outputs)
    events = find_events(scores, reference.delta_nats, stop_ids)
    audited = await audit_events(events, outputs, scorer, stock_outputs)
    return judge(
        outputs,
        scores,
        audited,
        reference,
        stop_ids=stop_ids,
        failed_requests=failed_requests,
    )
