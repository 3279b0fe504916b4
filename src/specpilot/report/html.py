"""One self-contained page: no script, no network, light and dark."""

from collections.abc import Mapping
from importlib import resources
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from specpilot.controller.noise import needed_gain, noise_warning
from specpilot.report.directions import SOURCES
from specpilot.report.figures import figures
from specpilot.report.words import gain_words, headline

MISSING, ABSENT = "not measured", "–"
"""What was not measured, as a card or line says it, and as a table's cell does."""


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
        "toml": lambda value: str(value).lower() if isinstance(value, bool) else value,
        "last": _last,
        "words": lambda value: value.replace("_", " "),
    }
    source = resources.files("specpilot.report").joinpath("template.html")
    template = environment.from_string(source.read_text(encoding="utf-8"))
    noise = report["noise"]
    return template.render(
        report=report,
        answer=headline(report),
        gain_words=gain_words(report),
        warning=noise_warning(noise),
        needed=None if noise is None else needed_gain(noise),
        figures=[Markup(svg) for svg in figures(report).values()],
        benchmarks=_benchmarks(report),
        sources=SOURCES,
        names=_names(report),
        directions={item["id"]: item["name"] for item in report["directions"]},
    )


def _names(report: Mapping[str, Any]) -> dict[str, str]:
    """Tree hash -> what a reader calls that system."""
    made = {
        attempt["system"]: (attempt["baseline"], item["name"])
        for item in report["directions"]
        for attempt in item["attempts"]
        if attempt["verdict"] == "promoted"
    }
    stock = report["systems"]["stock"]["tree_hash"]
    names = {stock: "stock"} if stock else {}
    # One more step away from stock at a time: a system is named once its baseline is.
    while ready := [tree for tree in made if tree not in names and made[tree][0] in names]:
        names |= {tree: f"{names[made[tree][0]]} + {made[tree][1]}" for tree in ready}
    return names


def _benchmarks(report: Mapping[str, Any]) -> list[str]:
    names: dict[str, None] = {}
    for system in report["systems"].values():
        names |= dict.fromkeys(system["tokens_per_second"]["per_benchmark"])
    return list(names)


def _number(value: float | None, digits: int = 1, missing: str = ABSENT) -> str:
    return missing if value is None else f"{value:,.{digits}f}"


def _times(value: float | None, missing: str = ABSENT) -> str:
    return missing if value is None else f"{value:.2f}×"


def _percent(value: float | None, digits: int = 1) -> str:
    return ABSENT if value is None else f"{100 * value:.{digits}f}%"


def _interval(value: Mapping[str, Any] | None) -> str:
    if value is None or value.get("point") is None:
        return ABSENT
    return f"{value['point']:.3f}× [{value['low']:.3f}, {value['high']:.3f}]"


def _last(path: str) -> str:
    """A model's name without the folders above it."""
    return path.rstrip("/").rpartition("/")[2] or path


def _short(value: str | None) -> str:
    return MISSING if value is None else value[:12]
