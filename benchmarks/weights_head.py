"""A head and hidden states with a real model's statistics at another size, and their argmax timed.

`head.json` (see head_statistics.py) has quantiles of a real head's row norms, and of the
coordinates and logits of some hidden states. At a width K and a vocabulary V: row norms are drawn
from the quantiles; a state's coordinates too, so that it is longer by the root of the ratio of
widths; the logits of each state are the real ones, the 64 largest one by one, the others by their
quantiles. A logit is thus as small beside the norms of row and state as random directions at that
width make it. One more state gives all rows about the same logit: no bound can exclude any.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from gpu_timing import capture, microseconds, spread

from specengine.kernels import certified_head
from specengine.kernels import packed_linear as kernels
from specengine.weights import encode_head

STATISTICS = Path(__file__).with_name("head.json")
STRETCH = 8192
COLD_BYTES = 300e6


def from_quantiles(points: list[float], count: int) -> torch.Tensor:
    """float32 [count] drawn from a distribution whose quantiles are evenly spaced points."""
    values = torch.tensor(points, device="cuda")
    at = torch.rand(count, device="cuda") * (len(points) - 1)
    low = at.long().clamp(max=len(points) - 2)
    return torch.lerp(values[low], values[low + 1], at - low)


def realistic_head(channels: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """bf16 [channels, width] and states bf16 [n + 1, width]; the last state is the flat one."""
    known = json.loads(STATISTICS.read_text(encoding="utf-8"))
    states, logits = [], []
    for state in known["states"]:
        states.append(from_quantiles(state["coordinates"], width))
        row = from_quantiles(state["logits"], channels)
        top = torch.tensor(state["top_logits"], device="cuda")
        row[torch.randperm(channels, device="cuda")[: len(top)]] = top
        logits.append(row)
    states.append(from_quantiles(known["states"][0]["coordinates"], width))
    logits.append(torch.ones(channels, device="cuda"))
    hidden, wanted = torch.stack(states).bfloat16(), torch.stack(logits, 1)
    norms = from_quantiles(known["row_norms"], channels)
    head = torch.empty(channels, width, dtype=torch.bfloat16, device="cuda")
    plant = torch.linalg.inv(hidden.double() @ hidden.double().T) @ hidden.double()
    for start in range(0, channels, STRETCH):
        part = slice(start, start + STRETCH)
        rows = torch.randn(len(norms[part]), width, device="cuda")
        rows *= (norms[part] / rows.norm(dim=1))[:, None]
        missing = wanted[part].double() - rows.double() @ hidden.double().T
        head[part] = (rows + (missing @ plant).float()).bfloat16()
    return head, hidden


def copies(head: torch.Tensor) -> list[certified_head.Head]:
    """The head and clones of it, more bytes together than a cache holds."""
    encoded = encode_head(head)
    whole = certified_head.Head(
        head,
        kernels.Weights("e2m5", encoded.copy.records, encoded.copy.scale),
        encoded.residual_norm,
        encoded.weight_norm,
    )
    clones = [
        replace(whole, matrix=head.clone(), copy=replace(whole.copy, records=records.clone()))
        for records in [whole.copy.records] * int(COLD_BYTES / head.nbytes)
    ]
    return [whole, *clones]


class Timer:
    """The argmax of one state by each arm; `cublas` stops at the logits."""

    def __init__(self, heads: list[certified_head.Head], state: torch.Tensor) -> None:
        self.heads, self.state = heads, state
        self.tokens = torch.full((1,), -1, device="cuda")
        self.counts = torch.full((1,), -1, dtype=torch.int32, device="cuda")

    def head(self, i: int) -> certified_head.Head:
        return self.heads[i % len(self.heads)]

    def cublas(self, i: int) -> None:
        torch.nn.functional.linear(self.state, self.head(i).matrix)

    def cublas_argmax(self, i: int) -> None:
        torch.nn.functional.linear(self.state, self.head(i).matrix).argmax(1)

    def whole(self, i: int) -> None:
        certified_head.argmax(self.state, self.head(i), self.tokens, self.counts, False)

    def certified(self, i: int) -> None:
        certified_head.argmax(self.state, self.head(i), self.tokens, self.counts, True)


def compare_head(channels: int, width: int, rounds: int) -> list[dict[str, Any]]:
    """For each hidden state: rows that were read, times by arm, and cuBLAS's time over ours.

    Raises:
        RuntimeError: a token is not the argmax of the exact logits.
    """
    head, hidden = realistic_head(channels, width)
    heads = copies(head)
    calls = 4 if head.nbytes > COLD_BYTES else 24
    results = []
    for i, state in enumerate(hidden):
        timer = Timer(heads, state[None].contiguous())
        arms = {
            "cublas": timer.cublas,
            "cublas_argmax": timer.cublas_argmax,
            "whole": timer.whole,
            "certified": timer.certified,
        }
        graphs = {arm: capture(call, calls) for arm, call in arms.items()}
        times = [
            {arm: microseconds(graph, calls) for arm, graph in graphs.items()}
            for _ in range(rounds)
        ]
        if timer.tokens.item() != certified_head.exact_logits(timer.state, head).argmax().item():
            raise RuntimeError(f"state {i} of the head [{channels}, {width}] has a wrong token")
        result: dict[str, Any] = {"channels": channels, "width": width, "state": i}
        result["rows_read"] = timer.counts.item()
        for arm in arms:
            result[arm] = {"microseconds": spread([one[arm] for one in times])}
            if not arm.startswith("cublas"):
                ratios = [one["cublas"] / one[arm] for one in times]
                result[arm]["over_cublas"] = spread(ratios)
        results.append(result)
    return results


def head_line(result: dict[str, Any]) -> str:
    """A line for a hidden state."""
    text = f"head {result['channels']} x {result['width']} state {result['state']:2d}"
    text += f" rows read {result['rows_read']:6d}"
    for arm in ("cublas", "cublas_argmax", "whole", "certified"):
        text += f"  {arm} {result[arm]['microseconds']['median']:.1f} us"
        if "over_cublas" in result[arm]:
            text += f" x{result[arm]['over_cublas']['median']:.3f}"
    return text
