"""Recordings drawn at random, of a drafter that holds two tokens in three."""

import numpy as np

from specpilot.engines.base import Recording

VOCAB = 6


def drawn_recording(
    seed: int, tokens: int = 40, positions: int = 5, candidates: int = 4
) -> Recording:
    """`tokens` drawn tokens, and a lattice at each of them that knows nothing of the next ones."""
    rng = np.random.default_rng(seed)
    output = rng.integers(0, VOCAB, tokens)
    ids = np.array(
        [[rng.permutation(VOCAB)[:candidates] for _ in range(positions)] for _ in range(tokens)]
    )
    scores = rng.standard_normal((tokens, positions, candidates, candidates)) * 2
    scores[:, 0] = scores[:, 0, :1]
    edge = scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))
    return Recording(f"r/{seed}", output.astype(np.int64), ids, edge.astype(np.float32))
