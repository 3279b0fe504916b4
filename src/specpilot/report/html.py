"""One self-contained page: no script, no network, light and dark."""

from collections.abc import Mapping
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from specpilot.report.figures import figures

MISSING = "not measured"


def render_html(report: Mapping[str, Any]) -> str:
    """The page of a report."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "number": _number,
        "times": _times,
        "percent": _percent,
        "interval": _interval,
        "short": _short,
    }
    source = resources.files("specpilot.report").joinpath("template.html")
    template = environment.from_string(source.read_text(encoding="utf-8"))
    drawn = [Markup(svg) for svg in figures(report).values()]
    return template.render(report=report, figures=drawn, benchmarks=_benchmarks(report))


def _benchmarks(report: Mapping[str, Any]) -> list[str]:
    names: dict[str, None] = {}
    for system in report["systems"].values():
        names |= dict.fromkeys(system["tokens_per_second"]["per_benchmark"])
    return list(names)


def _number(value: float | None, digits: int = 1) -> str:
    return MISSING if value is None else f"{value:,.{digits}f}"


def _times(value: float | None) -> str:
    return MISSING if value is None else f"{value:.2f}×"


def _percent(value: float | None, digits: int = 1) -> str:
    return MISSING if value is None else f"{100 * value:.{digits}f}%"


def _interval(value: Mapping[str, Any] | None) -> str:
    if value is None or value.get("point") is None:
        return MISSING
    return f"{value['point']:.3f}× [{value['low']:.3f}, {value['high']:.3f}]"


def _short(value: str | None) -> str:
    return MISSING if value is None else value[:12]
