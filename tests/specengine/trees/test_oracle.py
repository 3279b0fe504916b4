"""The oracle's chain: the right candidates, as far as lattice and budget go."""

import numpy as np
import pytest

from specengine.lattice import Lattice
from specengine.trees import Oracle


@pytest.mark.parametrize(
    ("continuation", "nodes", "tokens"),
    [
        ([11, 20, 31], 4, [7, 11, 20, 31]),
        ([11, 20, 31], 3, [7, 11, 20]),
        ([11, 20, 31], 1, [7]),
        ([11, 20, 31, 40], 9, [7, 11, 20, 31]),
        ([11, 20], 9, [7, 11, 20]),
        ([11, 99, 31], 9, [7, 11]),
        ([99, 20, 31], 9, [7]),
    ],
)
def test_it_follows_the_continuation(
    continuation: list[int], nodes: int, tokens: list[int]
) -> None:
    draw = np.random.default_rng(0)
    edge = -draw.random((3, 2, 2), dtype=np.float32)
    lattice = Lattice(np.array([[10, 11], [20, 21], [30, 31]]), edge)
    tree = Oracle(continuation)(lattice, 7, nodes)
    assert tree.tokens.tolist() == tokens
    assert tree.parent.tolist() == list(range(-1, len(tokens) - 1))
    path = [edge[0, 0, 1], edge[1, 1, 0], edge[2, 0, 1]][: len(tokens) - 1]
    np.testing.assert_allclose(tree.logp, np.cumsum([0.0, *path]), rtol=1e-6)
