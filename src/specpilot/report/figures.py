"""The report's figures, drawn from its own numbers; a figure without data does not exist."""

from collections.abc import Mapping
from typing import Any

from specpilot.report.charts import Series, line_chart, stacked_bars

PARTS = ("target_gemm", "recurrent", "attention", "drafter", "prefill", "rest")


def figures(report: Mapping[str, Any]) -> dict[str, str]:
    """File stem -> SVG document."""
    ceiling = report["ceiling"]
    before, after = ceiling["before"], ceiling["after"]
    drawn = {
        "speedup_over_nodes": _speedup(before, after),
        "tau_over_nodes": _tau(before, after),
        "step_breakdown": _steps(before, after),
    }
    return {name: svg for name, svg in drawn.items() if svg is not None}


def _speedup(before: Any, after: Any) -> str | None:
    series = [
        Series(name, tuple((n, s) for n, _, s in facts["curve"]))
        for name, facts in (("starting system", before), ("best system", after))
        if facts is not None and facts["curve"]
    ]
    if not series:
        return None
    if before is not None:
        own = before["tau"] * before["autoregressive_seconds"] / before["seconds_per_step"]
        nodes = [n for n, _, _ in before["curve"]]
        reference = ((min(nodes), own), (max(nodes), own)) if nodes else ()
        series.append(Series("starting system, as played", reference, dashed=True))
    title = "Predicted speedup over AR, S(N) = τ(N) / c(N)"
    return line_chart(title, "verified nodes N", "S(N)", series)


def _tau(before: Any, after: Any) -> str | None:
    facts = before or after
    if facts is None or not facts["curve"]:
        return None
    tree = tuple((n, tau) for n, tau, _ in facts["curve"])
    chain = tuple((n, tau) for n, tau in facts["chain_curve"])
    own = ((tree[0][0], facts["tau"]), (tree[-1][0], facts["tau"]))
    return line_chart(
        "Tokens per step by exact replay, τ(N)",
        "verified nodes N",
        "τ",
        [
            Series("best-first tree", tree),
            Series("greedy chain", chain),
            Series("starting system, as played", own, dashed=True),
        ],
    )


def _steps(before: Any, after: Any) -> str | None:
    bars: dict[str, dict[str, float]] = {}
    for name, facts in (("before", before), ("after", after)):
        if facts is not None and facts["by_class"]:
            bars[name] = {key: 1000 * value for key, value in facts["by_class"].items()}
            bars[f"{name}: floor"] = {
                key: 1000 * value for key, value in facts["floor_by_class"].items()
            }
    bars = {name: values for name, values in bars.items() if sum(values.values()) > 0}
    if not bars:
        return None
    return stacked_bars("Time of one step by kernel class", "ms", bars, PARTS)
