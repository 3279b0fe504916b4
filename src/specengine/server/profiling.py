"""Seconds per step by kernel class, from torch's profiler (paper section 3.1).

A request is played twice, stop tokens ignored: whole with the profiler off, which gives the step
time, then a few of its steps with the profiler on, which gives the classes. On a CPU an operator's
own time counts, on a GPU the kernels it launched. An operator belongs to the innermost scope or
operator above it that says a class.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity

from specengine.decoding.engine import Engine
from specengine.errors import RequestError

PROFILED_STEPS = 4
"""Steps that run under the profiler: enough for a mean, few enough for its memory."""
_WARM_UP_TOKENS = 4
CLASSES = ("target_gemm", "recurrent", "attention", "drafter", "prefill", "rest")

_SCOPES = {
    "specengine.draft": "drafter",
    "specengine.recurrent": "recurrent",
    "specengine.build": "rest",
    "specengine.commit": "rest",
    "specengine.verify": "rest",
}
"""Parts of the step as the engine marks them, and recurrent layers as marked here."""
_GEMM = ("aten::linear", "aten::addmm", "aten::mm", "mkldnn::_linear_pointwise", "aten::matmul")
_ATTENTION = ("scaled_dot_product", "flash_attention", "efficient_attention")


def profile_request(
    engine: Engine, prompt: Sequence[int], max_tokens: int, wanted: Callable[[], bool]
) -> dict[str, Any]:
    """Play a request and say where its steps' time went.

    Returns:
        `steps`; `seconds_per_step`, wall time of prefill and steps over steps; `by_class`, profiled
        seconds per step, where `prefill` is the prompt's time spread over the steps.

    Raises:
        NumericError: non-finite logits.
    """
    steps, seconds, prefill = _plain_run(engine, prompt, max_tokens, wanted)
    totals, profiled = _profiled_run(engine, prompt, max_tokens, min(PROFILED_STEPS, steps))
    by_class = {name: totals.get(name, 0.0) / profiled for name in CLASSES}
    by_class["prefill"] = prefill / steps
    return {"steps": steps, "seconds_per_step": seconds / steps, "by_class": by_class}


def time_steps(
    engine: Engine,
    prompt: Sequence[int],
    max_tokens: int,
    positions: int,
    nodes: Sequence[int],
    wanted: Callable[[], bool],
) -> dict[str, Any]:
    """What a step costs with a best-first tree of each size, on the same request and weights.

    Returns:
        `seconds_per_step`: size -> wall time of prefill and steps over steps.

    Raises:
        RequestError: there is no drafter.
        NumericError: non-finite logits.
    """
    if engine.drafter is None:
        raise RequestError(
            "needs a drafter, and this engine decodes autoregressively",
            where="step times",
            fix="start it with a drafter",
        )
    times = {}
    for size in nodes:
        # The host builds any size.
        variant = engine.variant(
            tree="best_first", tree_file="", device_tree=False, positions=positions, nodes=size
        )
        # The first pass of a size prepares its matrix products.
        _plain_run(variant, prompt, min(max_tokens, _WARM_UP_TOKENS), wanted)
        steps, seconds, _ = _plain_run(variant, prompt, max_tokens, wanted)
        times[str(size)] = seconds / steps
    return {"seconds_per_step": times}


def _plain_run(
    engine: Engine, prompt: Sequence[int], max_tokens: int, wanted: Callable[[], bool]
) -> tuple[int, float, float]:
    """Steps, at least one; seconds of all of it; seconds of the prefill."""
    session = engine.start(prompt, max_tokens, ignore_eos=True)
    begin = time.perf_counter()
    try:
        session.step()
        prefill = time.perf_counter() - begin
        steps = 0
        while session.finish_reason is None and (wanted() or steps == 0):
            session.step()
            steps += 1
        return steps, time.perf_counter() - begin, prefill
    finally:
        session.close()


def _profiled_run(
    engine: Engine, prompt: Sequence[int], max_tokens: int, steps: int
) -> tuple[dict[str, float], int]:
    activities = [ProfilerActivity.CPU]
    on_gpu = engine.target.device.type == "cuda"
    if on_gpu:
        activities.append(ProfilerActivity.CUDA)
    done = 0
    session = engine.start(prompt, max_tokens, ignore_eos=True)
    try:
        session.step()
        with (
            engine.counters.traced(),
            _recurrent_scopes(engine.target.model),
            torch.profiler.profile(activities=activities) as profiler,
        ):
            while done < steps and session.finish_reason is None:
                session.step()
                done += 1
    finally:
        session.close()
    return _by_class(profiler.events(), on_gpu=on_gpu), done


def _by_class(events: Sequence[FunctionEvent], *, on_gpu: bool) -> dict[str, float]:
    totals: dict[str, float] = {}
    known: dict[int, str] = {}
    for event in events:
        if event.device_type != torch.autograd.DeviceType.CPU:
            continue
        microseconds = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        name = class_of(event, known)
        totals[name] = totals.get(name, 0.0) + microseconds * 1e-6
    return totals


def class_of(event: FunctionEvent, known: dict[int, str]) -> str:
    """The class of an operator; `known` caches answers by event id."""
    found = known.get(event.id)
    if found is None:
        parent = event.cpu_parent
        outer = "rest" if parent is None else class_of(parent, known)
        found = known[event.id] = _inside(event.name, outer)
    return found


def _inside(name: str, outer: str) -> str:
    """The class of an operator called `name` below one of class `outer`."""
    if name in _SCOPES:
        return _SCOPES[name]
    # What the drafter does is the drafter's, whichever operator does it; and a softmax's products
    # are attention, not weights.
    if outer in ("drafter", "attention"):
        return outer
    if any(part in name for part in _ATTENTION):
        return "attention"
    return "target_gemm" if name in _GEMM else outer


@contextmanager
def _recurrent_scopes(model: torch.nn.Module) -> Iterator[None]:
    """Mark the recurrent layers while the profiler runs; their linears stay GEMMs."""
    from specengine.models.delta import GatedDelta

    open_scopes: list[torch.profiler.record_function] = []

    def enter(module: torch.nn.Module, arguments: object) -> None:
        scope = torch.profiler.record_function("specengine.recurrent")
        scope.__enter__()
        open_scopes.append(scope)

    def leave(module: torch.nn.Module, arguments: object, output: object) -> None:
        open_scopes.pop().__exit__(None, None, None)

    with ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, GatedDelta):
                stack.callback(module.register_forward_pre_hook(enter).remove)
                stack.callback(module.register_forward_hook(leave).remove)
        yield
