"""An engine with known truth and no process: the whole loop in a second, error rates testable.

A system's speed, faults and outputs follow from its tree (`simulated_truth`); seconds are
simulated, with noise seeded by tree, request, its place in the order, and arm, so that a resumed
run measures what the killed one would have measured.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from pydantic import ValidationError

from specpilot.core.errors import EngineFailure
from specpilot.core.measurement import Counters, DeviceState, KernelClass, Profile, TokenScore
from specpilot.core.record import content_hash
from specpilot.core.requests import FinishReason, Request, RequestOutcome
from specpilot.core.system import Checkout
from specpilot.engines.base import Identity, Recording
from specpilot.engines.simulated_truth import (
    CODE_FILE,
    STOP_TOKEN,
    VOCABULARY,
    Fault,
    Truth,
    prompt_key,
    read_truth,
    seeded,
    text_of,
)

SECONDS_PER_TOKEN = 0.004
"""Of stock; AR takes `AR_SLOWDOWN` times as long."""
AR_SLOWDOWN = 2.0
_CANDIDATES = 4
_RANK_SHARES = (0.6, 0.2, 0.1, 0.1)
"""How often the target's token is the drafter's first, second, third choice, or not offered."""
_STOCK_TAU = 2.4

_STOCK_OPTIONS = """\
# Shape of the verified draft: chain or best_first.
tree = "chain"

# Drafted positions per step; 0 means the drafter's trained block.
positions = 0

# Verified rows per step, the root included; 0 means a chain's length.
nodes = 0

# Layout of linear weights: plain or prepacked.
linear = "plain"

# Run query/key/value and gate/up as one product each.
fused_projections = false
"""
_STOCK_CODE = """\
speed = 1.0

fault = "none"

fault_after = 0

rounding = 0

noise = 0.004

[factors]
"tree=best_first" = 1.25
"linear=prepacked" = 1.08
"fused_projections=true" = 1.008
"""


class SimulatedAdapter:
    """Starts simulated systems of one host.

    Args:
        seed: of the noise.
        stock: files of the stock tree.
        slow_from: launches after which the machine runs at `slow_share` of its speed.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        stock: Mapping[str, bytes] | None = None,
        slow_from: float = math.inf,
        slow_share: float = 0.5,
    ) -> None:
        self.seed = seed
        self.launches = 0
        self._slow_from, self._slow_share = slow_from, slow_share
        self.alive: list[SimulatedEngine] = []
        self._stock = stock or {
            "system.toml": _STOCK_OPTIONS.encode(),
            CODE_FILE: _STOCK_CODE.encode(),
        }

    @property
    def stop_ids(self) -> frozenset[int]:
        """The one stop token of the simulated target."""
        return frozenset({STOP_TOKEN})

    def stock_tree(self) -> Mapping[str, bytes]:
        """Options of the embedded engine and a code file with their true worth."""
        return self._stock

    @property
    def speed(self) -> float:
        """Of the machine, over its speed at first."""
        return self._slow_share if self.launches > self._slow_from else 1.0

    async def identity(self) -> Identity:
        """Constant: the simulated target never changes."""
        return Identity(
            model_hash=content_hash("simulated target"),
            drafter_hash=content_hash("simulated drafter"),
            tokenizer_hash=content_hash("simulated tokenizer"),
        )

    async def device_state(self, device: str) -> DeviceState:
        """A device without sensors."""
        return DeviceState(device=device, uuid=f"simulated-{device}")

    async def launch(
        self, checkout: Checkout, device: str, *, threads: int | None = None
    ) -> "SimulatedEngine":
        """Read the system's truth from its checkout.

        Raises:
            EngineFailure: the source is broken, or its fault is not to start.
        """
        truth = read_truth(checkout.path, checkout.system.options)
        if truth.code.fault is Fault.NO_START:
            raise _failure("did not become ready in time", checkout)
        self.launches += 1
        twins = sum(engine.checkout == checkout for engine in self.alive)
        engine = SimulatedEngine(self, checkout, truth, arm=twins)
        self.alive.append(engine)
        return engine


class SimulatedEngine:
    """One simulated server."""

    def __init__(
        self, adapter: SimulatedAdapter, checkout: Checkout, truth: Truth, *, arm: int
    ) -> None:
        self.checkout = checkout
        self.truth = truth
        self._adapter = adapter
        self._arm = arm
        self._plays: Counter[str] = Counter()
        self._tokens = 0
        self._seconds = 0.0
        self.frozen = False

    async def generate(self, request: Request) -> RequestOutcome:
        """Play one request in no time; `seconds` are simulated.

        Raises:
            EngineFailure: the fault is to crash, or the answer is not a completion.
        """
        await asyncio.sleep(0)
        self._check_awake()
        self._plays[request.id] += 1
        fault = self.truth.code.fault
        if fault is Fault.CRASH and sum(self._plays.values()) > 5:
            raise _failure("vanished during a request", self.checkout)
        tokens, decoded = self._output(request)
        seconds = self._request_seconds(request, decoded)
        lost = fault is Fault.LOST_REQUESTS and decoded > 60
        self._tokens += len(tokens)
        self._seconds += 0.0 if math.isnan(seconds) else seconds
        try:
            return RequestOutcome(
                request_id=request.id,
                benchmark=request.benchmark,
                finish_reason=FinishReason.FAILED if lost else self._finish(tokens),
                output_token_ids=() if lost else tuple(tokens),
                seconds=seconds,
                seconds_to_first_token=0.001,
                error="server answered 500" if lost else None,
            )
        except ValidationError as error:
            raise _failure("answered a number that is not finite", self.checkout) from error

    async def score(
        self, prompt: Sequence[int], output: Sequence[int], prefill_length: int | None = None
    ) -> tuple[TokenScore, ...]:
        """The truth about every token of an output, the end included."""
        self._check_awake()
        text = text_of(prompt_key(prompt))
        scores = []
        for index, token in enumerate(output):
            inside = index < len(text.tokens)
            argmax = int(text.tokens[index]) if inside else STOP_TOKEN
            if token == argmax:
                margin = 0.0
            elif inside and token == int(text.rival[index]):
                margin = float(text.gap[index])
            else:
                margin = 5.0
            scores.append(TokenScore(token=token, argmax=argmax, margin_nats=margin))
        return tuple(scores)

    async def record(self, request: Request, positions: int) -> Recording:
        """Greedy output and lattices whose ranks follow fixed shares."""
        self._check_awake()
        tokens = np.asarray(self._clean(request), np.int64)
        count = max(len(tokens) - 1, 1)
        generator = seeded("lattice", request.id)
        shape = (count, positions)
        ranks = generator.choice(_CANDIDATES, size=shape, p=_RANK_SHARES)
        ids = VOCABULARY + np.broadcast_to(np.arange(_CANDIDATES), (*shape, _CANDIDATES)).copy()
        padded = np.concatenate([tokens, np.full(positions + 1, STOP_TOKEN)])
        following = np.arange(count)[:, None] + np.arange(positions)[None, :] + 1
        offered = ranks < _CANDIDATES - 1
        rows, columns = np.nonzero(offered)
        ids[rows, columns, ranks[offered]] = padded[following[offered]]
        scores = np.log(np.asarray(_RANK_SHARES, np.float32))
        edge = np.broadcast_to(scores, (*shape, _CANDIDATES, _CANDIDATES))
        return Recording(request.id, tokens, ids.astype(np.int64), edge.astype(np.float32))

    async def profile(self, request: Request) -> Profile:
        """A step whose weights take most of the time."""
        self._check_awake()
        step = SECONDS_PER_TOKEN * _STOCK_TAU / self.truth.speed
        shares = {
            KernelClass.TARGET_GEMM: 0.6,
            KernelClass.RECURRENT: 0.0,
            KernelClass.ATTENTION: 0.1,
            KernelClass.DRAFTER: 0.15,
            KernelClass.PREFILL: 0.03,
            KernelClass.REST: 0.07,
        }
        by_class = {name: share * step for name, share in shares.items()}
        return Profile(steps=max(request.max_new_tokens // 3, 1), seconds_per_step=step,
                       by_class=by_class)  # fmt: skip

    async def step_times(
        self, request: Request, positions: int, nodes: Sequence[int]
    ) -> dict[int, float]:
        """Steps of the system with a best-first tree; its size costs nothing."""
        self._check_awake()
        options = {**self.checkout.system.options, "tree": "best_first"}
        speed = read_truth(self.checkout.path, options).speed
        return dict.fromkeys(nodes, SECONDS_PER_TOKEN * _STOCK_TAU / speed)

    async def counters(self) -> Counters:
        """Counts since the last flush, forged when that is the fault."""
        self._check_awake()
        forged = self.truth.code.fault is Fault.FORGED_COUNTERS
        silent = self.truth.code.fault is Fault.NEVER_ACTIVE
        tau = 1.0 if self.checkout.autoregressive else _STOCK_TAU * self.truth.speed
        steps = 1 if forged and self._tokens else round(self._tokens / tau)
        names = self.truth.mechanisms or (("fault",) if forged else ())
        return Counters(
            steps=steps,
            emitted_tokens=self._tokens,
            drafted_tokens=steps * 7,
            verified_rows=steps * 8,
            activations={name.split("=")[0]: 0 if silent else steps for name in names},
            seconds={"verify": self._seconds},
        )

    async def flush(self) -> None:
        """Forget counts; what was played before is remembered, as a cheating cache would."""
        self._check_awake()
        self._tokens = 0
        self._seconds = 0.0

    async def freeze(self) -> None:
        """Compute nothing, and slow nobody by computing.

        Raises:
            EngineFailure: it left the host.
        """
        if self not in self._adapter.alive:
            raise _failure("cannot be frozen: its process is gone", self.checkout)
        self.frozen = True

    async def thaw(self) -> None:
        """Go on."""
        self.frozen = False

    async def stop(self) -> None:
        """Leave the host."""
        if self in self._adapter.alive:
            self._adapter.alive.remove(self)

    def _clean(self, request: Request) -> list[int]:
        rounding = -1 if self.checkout.autoregressive else self.truth.code.rounding
        tokens = text_of(prompt_key(request.prompt_token_ids)).emitted(rounding)
        return [int(token) for token in tokens[: request.max_new_tokens]]

    def _output(self, request: Request) -> tuple[list[int], int]:
        """The answer's tokens, and how many of them were decoded for real."""
        tokens = self._clean(request)
        code, half = self.truth.code, max(len(tokens) // 2, 1)
        match code.fault:
            case Fault.LOSSY:
                for index in range(code.fault_after, len(tokens) - 1, 3):
                    tokens[index] = 1 + (tokens[index] + 7) % (VOCABULARY - 1)
            case Fault.EARLY_STOP:
                tokens = [*tokens[: half - 1], STOP_TOKEN]
            case Fault.SILENT_STOP:
                tokens = tokens[:half]
            case Fault.INFLATED_TOKENS:
                doubled = [token for token in tokens for _ in range(2)]
                return doubled[: request.max_new_tokens], half
            case _:
                pass
        return tokens, len(tokens)

    def _request_seconds(self, request: Request, decoded: int) -> float:
        code, speed = self.truth.code, self.truth.speed
        play, place = self._plays[request.id], self._plays.total()
        if code.fault is Fault.NAN_SECONDS:
            return math.nan
        if self.checkout.autoregressive:
            speed = code.speed / AR_SLOWDOWN
        if code.fault is Fault.KNOWN_PROMPTS:
            known = prompt_key(request.prompt_token_ids) in code.known_prompts
            speed *= code.gift if known else 1.0
        if code.fault is Fault.MEMOISED and play > 1:
            speed *= code.gift
        if any(other.slows(request) for other in self._adapter.alive if other is not self):
            speed /= code.gift
        speed *= self._adapter.speed
        tree = self.checkout.system.tree_hash
        noise = seeded(self._adapter.seed, tree, request.id, place, self._arm).normal()
        return decoded * SECONDS_PER_TOKEN / speed * math.exp(code.noise * noise)

    def slows(self, request: Request) -> bool:
        """Whether it slows a rival that plays this request."""
        match self.truth.code.fault:
            case Fault.SABOTAGE:
                return not self.frozen
            case Fault.QUEUED_WORK:
                return prompt_key(request.prompt_token_ids) not in self.truth.code.known_prompts
            case _:
                return False

    def _check_awake(self) -> None:
        if self.frozen:
            raise ValueError("a frozen server was asked")

    def _finish(self, tokens: Sequence[int]) -> FinishReason:
        return FinishReason.STOP if tokens[-1] == STOP_TOKEN else FinishReason.LENGTH


def simulated_requests(
    benchmarks: Sequence[str], count: int, max_new_tokens: int, *, seed: int
) -> tuple[Request, ...]:
    """`count` made-up prompts per benchmark."""
    requests = []
    for benchmark in benchmarks:
        for index in range(count):
            prompt = seeded("prompt", seed, benchmark, index).integers(2, VOCABULARY, 12)
            requests.append(
                Request(
                    id=f"{benchmark}/{index}",
                    benchmark=benchmark,
                    prompt_token_ids=tuple(int(token) for token in prompt),
                    max_new_tokens=max_new_tokens,
                )
            )
    return tuple(requests)


def _failure(what: str, checkout: Checkout) -> EngineFailure:
    return EngineFailure(
        what,
        where=f"simulated system {checkout.system.tree_hash[:12]}",
        fix="look at the system's source",
    )
