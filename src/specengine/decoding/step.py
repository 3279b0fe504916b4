"""One decoding step: draft -> build -> verify -> accept -> commit (paper sections 2.1 and 2.2)."""

from collections.abc import Callable, Sequence

from specengine.decoding.counters import EngineCounters
from specengine.decoding.proposal import Proposer
from specengine.decoding.sampled_chain import SampledChain, accept_sampled
from specengine.decoding.sampling import Sampler
from specengine.decoding.slots import Slot
from specengine.decoding.verification import Committer, Verified, Verifier
from specengine.trees import DraftTree
from specengine.verify.acceptance import Acceptance, accept_greedy, accept_walk

Cut = Callable[[list[int]], int]
"""How many of the accepted tokens are emitted: fewer than all when the request ends among them."""


class Step:
    """The step as a composition of its parts; AR is the one whose proposer drafts nothing."""

    def __init__(
        self,
        proposer: Proposer,
        verifier: Verifier,
        committer: Committer,
        counters: EngineCounters,
        mechanisms: Sequence[str],
    ) -> None:
        self.proposer = proposer
        self._verifier = verifier
        self.committer = committer
        self.counters = counters
        self._mechanisms = mechanisms

    def prefill(self, slot: Slot, prompt: Sequence[int], sampler: Sampler | None = None) -> int:
        """Run the prompt and commit it; return the first output token, the argmax or a draw."""
        with self.counters.timed("prefill"):
            verified = self._verifier.prefill(slot, prompt)
            self.committer.commit(slot, range(len(prompt)), verified)
        self.counters.requests += 1
        self.counters.prompt_tokens += len(prompt)
        return int(verified.argmax()[0]) if sampler is None else sampler.choose(verified.logits[0])

    def run(
        self,
        slot: Slot,
        anchor: int,
        remaining: int,
        cut: Cut,
        sampler: Sampler | None = None,
    ) -> list[int]:
        """Emit 1 to `remaining` tokens after `anchor`, which is emitted but not yet in the cache.

        The accepted rows are committed only when the request goes on after them.
        """
        tree = self.proposer.propose(slot, anchor, remaining - 1, sampler)
        acceptance, verified = self.verify(slot, tree, sampler)
        kept = cut(acceptance.tokens)
        self.counters.count_step(rows=len(tree), emitted=kept)
        if kept == len(acceptance.tokens) and kept < remaining:
            self.commit(slot, acceptance.rows, verified)
        return acceptance.tokens[:kept]

    def verify(
        self, slot: Slot, tree: DraftTree, sampler: Sampler | None = None
    ) -> tuple[Acceptance, Verified]:
        """Run the exact pass over a tree and accept along it."""
        with self.counters.timed("verify"):
            verified = self._verifier.verify(slot, tree)
            acceptance = _accept(tree, verified, sampler)
        for mechanism in self._mechanisms:
            self.counters.activations[mechanism] += 1
        if len(tree) > 1:
            self.counters.watch_acceptance(len(acceptance.tokens) - 1)
        return acceptance, verified

    def commit(self, slot: Slot, rows: Sequence[int], verified: Verified) -> None:
        """Make accepted rows part of the context."""
        with self.counters.timed("commit"):
            self.committer.commit(slot, rows, verified)


def _accept(tree: DraftTree, verified: Verified, sampler: Sampler | None) -> Acceptance:
    if sampler is None:
        return accept_greedy(tree, verified.argmax())
    if isinstance(tree, SampledChain):
        return accept_sampled(tree, verified.logits, sampler)
    return accept_walk(tree, lambda node: sampler.choose(verified.logits[node]))
