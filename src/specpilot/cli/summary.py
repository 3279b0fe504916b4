"""The table that ends a run on a terminal. Numbers are rounded here and nowhere else."""

from typing import Any

from specpilot.loop.state import RunState
from specpilot.report.directions import direction_facts

_WIDTH = 12


def summary_lines(state: RunState, seconds: float | None) -> list[str]:
    """Rates, tau, the sealed final, forcing and every direction's verdict, as plain lines."""
    finals = [item.final for item in state.rounds if item.final is not None]
    final = finals[-1] if finals else None
    speeds = dict(final.speeds) if final else {}
    if not speeds and state.stock_facts is not None:
        speeds = {"ar": state.stock_facts.autoregressive, "stock": state.stock_facts.stock}
    lines = [_row("tokens/s", *speeds)]
    names = next(iter(speeds.values())).tokens_per_second if speeds else {}
    for name in names:
        lines.append(_row(name, *(f"{s.tokens_per_second[name]:.1f}" for s in speeds.values())))
    lines.append(_row("all", *(f"{s.overall_tokens_per_second:.1f}" for s in speeds.values())))
    lines.append(_row("tau", *(f"{s.tau:.2f}" for s in speeds.values())))
    if final is not None:
        lines.append(f"sealed final: {final.verdict.kind} ({final.verdict.reason})")
        lines.append(f"  {final.verdict.detail}")
        if final.gain is not None:
            found = final.gain.overall
            lines.append(
                f"  gain over stock {found.point:.3f}x [{found.low:.3f}, {found.high:.3f}], "
                f"{final.gain.pairs} requests"
            )
        if final.forcing is not None:
            forced = final.forcing
            lines.append(
                f"  token forcing {'accepts' if forced.accepted else 'rejects'} "
                f"{forced.tokens} tokens, mismatch rate {forced.mismatch_rate:.2%} "
                f"(stock {forced.stock_mismatch_rate:.2%})"
            )
    lines += [_direction(direction_facts(item)) for item in state.directions.values()]
    if seconds is not None:
        lines.append(f"{seconds:.0f} s")
    return lines


def _direction(facts: dict[str, Any]) -> str:
    return f"  {facts['verdict']!s:<13} {facts['name']} ({facts['reason']})"


def _row(*cells: str) -> str:
    return "".join(f"{cell:>{_WIDTH}}" for cell in cells)
