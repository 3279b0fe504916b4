"""Of equal logits the lowest id is taken, and what is no number is refused."""

import pytest
import torch

from specengine.decoding.verification import greedy_tokens
from specengine.errors import NumericError

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_ties_go_to_the_lowest_id(dtype):
    rows = [[1.0, 3.0, 3.0, 3.0], [0.0, 0.0, 0.0, 0.0], [-INF, -2.0, -2.0, -3.0]]
    assert greedy_tokens(torch.tensor(rows, dtype=dtype)).tolist() == [1, 0, 1]
    large = torch.zeros(2, 5000, dtype=dtype)
    large[0, [700, 4999]] = large[1, [4000, 4500]] = 2.0
    assert greedy_tokens(large).tolist() == [700, 4000]


@pytest.mark.parametrize("row", [[0.0, NAN, 1.0], [0.0, INF, 1.0], [-INF, -INF, -INF]])
def test_what_is_no_number_is_refused(row):
    with pytest.raises(NumericError, match="non-finite"):
        greedy_tokens(torch.tensor([[0.0, 1.0, 2.0], row]))
