"""The largest scores of each row, with their ids."""

import torch

from specengine.errors import NumericError


def top_candidates(unary: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` largest scores per row and their ids, largest first, ties by lowest id.

    Args:
        unary: float32 [n, V].
        count: candidates per row.

    Raises:
        NumericError: a row holds a number that is not finite, minus infinity (a padded column)
            excepted.
    """
    rows, size = unary.shape
    width = 64
    blocks = -(-size // width)
    if size % width:
        unary = torch.nn.functional.pad(unary, (0, blocks * width - size), value=float("-inf"))
    grouped = unary.view(rows, blocks, width)
    # The largest `count` of a row lie in the `count` blocks with the largest maxima: one pass over
    # the row instead of a full selection. Stable sorts keep equal scores in id order.
    peaks = grouped.amax(-1)
    if not bool(torch.isfinite(peaks.amax(-1)).all()):
        raise NumericError(
            "produced non-finite logits", where="drafter",
            fix="run it in bfloat16 or float32 and check its weights",
        )  # fmt: skip
    ranked = torch.sort(peaks, dim=-1, descending=True, stable=True).indices
    chosen = ranked[:, :count].sort(-1).values
    near = torch.arange(width, device=unary.device)
    places = (chosen[..., None] * width + near).flatten(1)
    values, order = torch.sort(unary.gather(1, places), dim=-1, descending=True, stable=True)
    return values[:, :count], places.gather(1, order[:, :count])
