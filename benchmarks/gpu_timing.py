"""Times of GPU work: graphs of calls, replayed between events."""

import statistics
from collections.abc import Callable

import torch

Call = Callable[[int], None]
"""Queues the i-th call of a graph."""


def capture(call: Call, calls: int) -> torch.cuda.CUDAGraph:
    """A graph of `calls` products, replayed once."""
    call(0)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(i)
    graph.replay()
    torch.cuda.synchronize()
    return graph


def microseconds(graph: torch.cuda.CUDAGraph, calls: int, replays: int = 1) -> float:
    """Time of one product."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return 1e3 * start.elapsed_time(end) / (calls * replays)


def spread(values: list[float]) -> dict[str, float]:
    return {
        "median": round(statistics.median(values), 4),
        "low": round(min(values), 4),
        "high": round(max(values), 4),
    }
