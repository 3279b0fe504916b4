"""The known truth behind the simulated engine: what a tree is worth, and what the target says.

`specengine/simulated.toml` stands for the engine's source code: its `speed` is the true speed of
the code, `[factors]` say what an option setting is worth, and `fault` names a way to cheat. The
target's text is a function of the prompt alone, with rare near-ties that a different rounding
resolves differently, so that lossless systems differ from one another as real ones do.
"""

import hashlib
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from specpilot.core.errors import EngineFailure
from specpilot.core.numbers import Count, NonNegative, Positive
from specpilot.core.record import Record
from specpilot.core.system import OptionValue

CODE_FILE = "specengine/simulated.toml"
STOP_TOKEN = 0
VOCABULARY = 997
_NEAR_TIE_SHARE = 0.01
_NEAR_TIE_NATS = 0.11
_SHORTEST, _LONGEST = 24, 160


class Fault(StrEnum):
    """Ways to cheat, or to fail, that the judge must catch."""

    NONE = "none"
    LOSSY = "lossy"
    """Wrong tokens from `fault_after` on."""
    EARLY_STOP = "early_stop"
    """Ends half way with a stop token."""
    SILENT_STOP = "silent_stop"
    """Ends half way and calls it the limit."""
    LOST_REQUESTS = "lost_requests"
    NAN_SECONDS = "nan_seconds"
    INFLATED_TOKENS = "inflated_tokens"
    """Repeats tokens in the answer without having decoded them."""
    KNOWN_PROMPTS = "known_prompts"
    """`gift` times faster on `known_prompts` only."""
    MEMOISED = "memoised"
    """Fast when the same request comes again."""
    SABOTAGE = "sabotage"
    """Slows every other server while it may compute."""
    QUEUED_WORK = "queued_work"
    """Slows every other server, frozen or not, by what it left on the device; not on
    `known_prompts`."""
    FORGED_COUNTERS = "forged_counters"
    """Claims a huge tau and activations."""
    NEVER_ACTIVE = "never_active"
    """No mechanism ever runs, whatever the options say."""
    CRASH = "crash"
    """Vanishes in the middle of the run."""
    NO_START = "no_start"


class Code(Record):
    """`specengine/simulated.toml`."""

    speed: Positive = 1.0
    fault: Fault = Fault.NONE
    fault_after: Count = 0
    gift: Positive = 2.0
    known_prompts: tuple[str, ...] = ()
    rounding: Count = 0
    """Two systems with different roundings resolve near-ties differently."""
    noise: NonNegative = 0.004
    """Standard deviation of a request's log rate."""
    factors: dict[str, Positive] = Field(default_factory=dict)
    """`option=value` -> speed factor."""


@dataclass(frozen=True, slots=True)
class Truth:
    """What a system really is."""

    code: Code
    speed: float
    mechanisms: tuple[str, ...]
    """Option settings that differ from stock and are worth something."""


def read_truth(checkout: Path, options: dict[str, OptionValue]) -> Truth:
    """The truth of an exported tree.

    Raises:
        EngineFailure: the code file is missing or malformed, as broken source would be.
    """
    path = checkout / CODE_FILE
    try:
        code = Code.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, ValidationError) as error:
        raise EngineFailure(
            f"does not start ({str(error).splitlines()[0]})",
            where=CODE_FILE,
            fix="correct the simulated source",
        ) from error
    settings = [f"{key}={_spell(value)}" for key, value in sorted(options.items())]
    active = tuple(setting for setting in settings if setting in code.factors)
    speed = code.speed
    for setting in active:
        speed *= code.factors[setting]
    return Truth(code, speed, active)


def prompt_key(prompt: Sequence[int]) -> str:
    """Name of a prompt, for `known_prompts`."""
    return hashlib.blake2b(np.asarray(prompt, np.int64).tobytes(), digest_size=8).hexdigest()


def seeded(*parts: object) -> np.random.Generator:
    """A generator that depends on the parts and nothing else."""
    digest = hashlib.blake2b("\x1f".join(map(str, parts)).encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest))


@dataclass(frozen=True, slots=True)
class Text:
    """The target's continuation of one prompt.

    Attributes:
        tokens: int64 [L], the argmax at every position; the last one is the stop token.
        rival: int64 [L], the runner-up.
        gap: float64 [L] in nats, log p(argmax) - log p(rival); tiny at near-ties.
    """

    tokens: NDArray[np.int64]
    rival: NDArray[np.int64]
    gap: NDArray[np.float64]

    def emitted(self, rounding: int) -> NDArray[np.int64]:
        """What a lossless system with that rounding emits: near-ties may go either way."""
        ties = self.gap < _NEAR_TIE_NATS
        generator = seeded("rounding", rounding, self.tokens.tobytes().hex())
        flips = ties & (generator.random(len(self.tokens)) < 0.5)
        flips[-1] = False
        return np.where(flips, self.rival, self.tokens)


@lru_cache(maxsize=4096)
def text_of(key: str) -> Text:
    """The target's continuation of the prompt with that key."""
    generator = seeded("text", key)
    length = int(generator.integers(_SHORTEST, _LONGEST))
    tokens = generator.integers(2, VOCABULARY, length)
    tokens[-1] = STOP_TOKEN
    rival = np.where(tokens == 1, 2, tokens - 1)
    rival[-1] = 1
    ties = generator.random(length) < _NEAR_TIE_SHARE
    gap = np.where(ties, generator.random(length) * _NEAR_TIE_NATS, 1 + generator.random(length))
    return Text(tokens, rival, gap)


def _spell(value: OptionValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
