"""Scores outputs on a running stock server: teacher-forced, FP32 head, the stop token included."""

from collections.abc import Sequence

from specpilot.core.errors import EngineFailure
from specpilot.core.measurement import OutputScore
from specpilot.engines.base import RunningEngine
from specpilot.forcing.outputs import ForcedOutput


async def score_outputs(
    scorer: RunningEngine, outputs: Sequence[ForcedOutput], prefill_length: int | None = None
) -> tuple[OutputScore, ...]:
    """One score per emitted token of every output, in order; an empty output has none.

    Args:
        scorer: a stock server.
        prefill_length: tokens per forward pass; all in one when None.

    Raises:
        EngineFailure: the scorer failed, or scored other tokens than it was given.
    """
    scores = []
    for output in outputs:
        ids = output.output_token_ids
        tokens = await scorer.score(output.prompt_token_ids, ids, prefill_length) if ids else ()
        if tuple(entry.token for entry in tokens) != ids:
            raise EngineFailure(
                f"scored {len(tokens)} tokens of {len(ids)}, or other ones",
                where=f"scorer, request {output.request_id}",
                fix="check the stock server; the scores are void",
            )
        scores.append(OutputScore(request_id=output.request_id, tokens=tokens))
    return tuple(scores)
