"""The engine: a target, a drafter or none, and the options that pick the parts of a step.

Without a drafter the same engine decodes autoregressively. Every output is the target's own, its
greedy decode or a draw from its distribution (paper section 2.1).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from specengine.decoding.counters import EngineCounters
from specengine.decoding.options import CHAINS, STEP_OPTIONS, EngineOptions
from specengine.decoding.proposal import AnchorProposer, LatticeProposer, Proposer
from specengine.decoding.recorder import RecordedOutput, Recorder
from specengine.decoding.sampling import Sampler, Sampling
from specengine.decoding.scoring import ScoreArrays, Scorer
from specengine.decoding.session import Halt, Session
from specengine.decoding.slots import SlotPool
from specengine.decoding.step import Step
from specengine.decoding.verification import Committer, Verifier
from specengine.errors import OptionError, RequestError

if TYPE_CHECKING:
    from specengine.drafters.base import Drafter
    from specengine.models import Target


class Engine:
    """Starts sessions, scores and records; one thread at a time.

    Args:
        target: the model that decides every token.
        drafter: None decodes autoregressively.
        options: the system's options.
        slots: idle request memories that are kept for reuse.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter | None,
        options: EngineOptions | None = None,
        *,
        slots: int = 1,
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.options = options or EngineOptions()
        self._check_options()
        self.counters = EngineCounters()
        self._pool = SlotPool(target, drafter, slots=slots)
        self._lattices: LatticeProposer | None = None
        proposer: Proposer = AnchorProposer()
        if drafter is not None:
            proposer = self._lattices = LatticeProposer(drafter, self.options, self.counters)
        self._step = Step(
            proposer,
            Verifier(target),
            Committer(target, drafter),
            self.counters,
            _weight_mechanisms(target),
        )

    def start(
        self,
        prompt_ids: Sequence[int],
        max_new_tokens: int,
        ignore_eos: bool = False,
        halt: Halt | None = None,
        sampling: Sampling | None = None,
    ) -> Session:
        """Begin a request; the first `step` of the session prefills its prompt.

        Args:
            prompt_ids: at least one token.
            max_new_tokens: at least 1; never more are emitted.
            ignore_eos: go on after stop tokens.
            halt: ends the request after the first token for which it answers True.
            sampling: how tokens are drawn; greedily when None.

        Raises:
            RequestError: a field does not fit this target; `where` names it.
        """
        self.check_tokens(prompt_ids, "prompt")
        self.check_room(len(prompt_ids), max_new_tokens)
        draws = sampling is not None and not sampling.greedy
        sampler = Sampler(sampling, prompt_ids) if sampling is not None and draws else None
        return Session(
            self._step,
            self._pool,
            prompt_ids,
            max_new_tokens=max_new_tokens,
            stop_ids=frozenset() if ignore_eos else self.target.eos_token_ids,
            halt=halt,
            sampler=sampler,
        )

    def score(
        self,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        prefill_length: int | None = None,
    ) -> ScoreArrays:
        """Teacher-force an output; see `Scorer.score`.

        Raises:
            RequestError: a field does not fit this target; `where` names it.
            NumericError: non-finite logits.
        """
        self.check_tokens(prompt_ids, "prompt_token_ids")
        self.check_tokens(output_ids, "output_token_ids")
        self.check_room(
            len(prompt_ids), len(output_ids), "output_token_ids", prompt_where="prompt_token_ids"
        )
        return Scorer(self.target, self._pool).score(prompt_ids, output_ids, prefill_length)

    def record(
        self,
        prompt_ids: Sequence[int],
        max_new_tokens: int,
        positions: int,
        keep_going: Callable[[], bool] = lambda: True,
    ) -> RecordedOutput:
        """Greedy output with the lattice of every position; see `RecordedOutput`.

        Raises:
            RequestError: a field does not fit this target, or there is no drafter.
            NumericError: non-finite logits or scores.
        """
        if self._lattices is None:
            raise RequestError(
                "needs a drafter, and this engine decodes autoregressively",
                where="record",
                fix="start it with a drafter",
            )
        self.check_tokens(prompt_ids, "prompt_token_ids")
        self.check_room(len(prompt_ids), max_new_tokens)
        recorder = Recorder(self._step, self._lattices, self._pool)
        return recorder.record(
            prompt_ids, max_new_tokens, positions, self.target.eos_token_ids, keep_going
        )

    def variant(self, **changes: object) -> Engine:
        """The same models with other decoding options and counters of its own.

        Args:
            changes: options of the step, such as `tree` or `nodes`; the layers stay as loaded, so
                options of their weights cannot change.

        Raises:
            OptionError: an option that the step does not have, or a value out of range.
        """
        fixed = sorted(changes.keys() - STEP_OPTIONS)
        if fixed:
            raise OptionError(
                "is decided when the model is loaded",
                where=f"option '{fixed[0]}'",
                fix="start another engine with it",
            )
        options = EngineOptions.model_validate({**self.options.model_dump(), **changes})
        return Engine(self.target, self.drafter, options)

    def flush(self) -> None:
        """Drop idle request memory and zero the counters; no session may be running."""
        self._pool.clear()
        self.counters.reset()

    def _check_options(self) -> None:
        recurs = bool(self.target.layout.delta.layers)
        if self.target.options.cuda_graphs and recurs and self.options.tree not in CHAINS:
            raise OptionError(
                "walks recurrent layers along one path, and this target recurs",
                where="option 'cuda_graphs'",
                fix=f"use tree 'chain' with it, or '{self.options.tree}' without",
            )

    def check_tokens(self, tokens: Sequence[int], where: str) -> None:
        """Refuse an empty list or an id that the target does not know.

        Raises:
            RequestError: naming `where` and the first wrong id.
        """
        if not tokens:
            raise RequestError("is empty", where=where, fix="give at least one token")
        vocabulary = self.target.vocab_size
        if min(tokens) < 0 or max(tokens) >= vocabulary:
            wrong = next(token for token in tokens if not 0 <= token < vocabulary)
            raise RequestError(
                f"holds token id {wrong}",
                where=where,
                fix=f"use ids from 0 to {vocabulary - 1}",
            )

    def check_room(
        self, prompt: int, output: int, where: str = "max_tokens", prompt_where: str = "prompt"
    ) -> None:
        """Refuse a request that would run past the target's positions.

        Raises:
            RequestError: naming `prompt_where` when the prompt alone is too long, else `where`.
        """
        limit = self.target.max_positions
        if output < 1:
            raise RequestError(f"is {output}", where=where, fix="give at least 1")
        if prompt >= limit:
            raise RequestError(
                f"has {prompt} tokens and the target has {limit} positions",
                where=prompt_where,
                fix="shorten the prompt",
            )
        if prompt + output > limit:
            raise RequestError(
                f"{output} after a prompt of {prompt} tokens passes the target's {limit} positions",
                where=where,
                fix=f"ask for at most {limit - prompt}",
            )


def _weight_mechanisms(target: Target) -> list[str]:
    """Mechanisms inside the target's layers, which run in every pass."""
    names = []
    if target.options.linear == "prepacked":
        names.append("prepacked_linear")
    if target.options.linear in ("w12", "w11s"):
        names.append("packed_linear")
    if target.options.fused_projections:
        names.append("fused_projections")
    if target.options.cuda_graphs:
        names.append("cuda_graphs")
    return names
