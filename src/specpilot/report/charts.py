"""A small SVG writer: line charts and stacked bars, readable on light and dark pages.

Colours come from CSS variables of the surrounding page, with fallbacks for a file opened alone.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 560, 320
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 40, 46
CHARACTER = 6.6
"""Width of a character of small text, rather too wide: fonts differ."""
COLOURS = ("#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626", "#64748b")
STYLE = """
text { font: 12px system-ui, sans-serif; fill: var(--ink, #1e293b); }
.title { font-weight: 600; font-size: 13px; }
.small { font-size: 11px; fill: var(--muted, #64748b); }
.grid { stroke: var(--line, #cbd5e1); stroke-width: 1; }
"""


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart; `dashed` marks a reference."""

    name: str
    points: tuple[tuple[float, float], ...]
    dashed: bool = False


def line_chart(title: str, x_label: str, y_label: str, series: Sequence[Series]) -> str:
    """An SVG document; series without points are left out."""
    drawn = [item for item in series if item.points]
    xs = [x for item in drawn for x, _ in item.points]
    ys = [y for item in drawn for _, y in item.points]
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(min(0.0, *ys), max(ys))
    across = _scale(x_ticks[0], x_ticks[-1], LEFT, WIDTH - RIGHT)
    upward = _scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    body = [_text(LEFT, 16, title, "title")]
    for tick in y_ticks:
        y = upward(tick)
        body.append(_line(LEFT, y, WIDTH - RIGHT, y))
        body.append(_text(LEFT - 6, y + 4, spell(tick), "small", "end"))
    for tick in x_ticks:
        body.append(_text(across(tick), HEIGHT - BOTTOM + 16, spell(tick), "small", "middle"))
    body.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, x_label, "small", "middle"))
    body.append(_text(LEFT, TOP - 8, y_label, "small"))
    for index, item in enumerate(drawn):
        body += _series(item, index, across, upward)
    names = {index: item.name for index, item in enumerate(drawn)}
    legend, height = _legend(names, LEFT, HEIGHT + 2)
    return _document([*body, *legend], title, height)


def stacked_bars(
    title: str, unit: str, bars: Mapping[str, Mapping[str, float]], parts: Sequence[str]
) -> str:
    """Horizontal bars, each divided into the same parts; a part's tooltip holds its value."""
    rows = list(bars.items())
    bottom = TOP + 40 * len(rows)
    largest = max(sum(values.values()) for _, values in rows)
    scale_ticks = ticks(0.0, largest)
    across = _scale(0.0, scale_ticks[-1], LEFT + 44, WIDTH - RIGHT)
    body = [_text(LEFT, 16, f"{title}, {unit}", "title")]
    for tick in scale_ticks:
        body.append(_line(across(tick), TOP - 8, across(tick), bottom))
        body.append(_text(across(tick), bottom + 14, spell(tick), "small", "middle"))
    for row, (name, values) in enumerate(rows):
        y, at = TOP + 40 * row, 0.0
        body.append(_text(LEFT + 38, y + 17, name, "", "end"))
        for index, part in enumerate(parts):
            value = values.get(part, 0.0)
            x, width = across(at), across(at + value) - across(at)
            body.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="26" '
                f'fill="{colour(index)}"><title>{escape(part)}: {value:.4g} {escape(unit)}'
                "</title></rect>"
            )
            at += value
    # A part that takes no time anywhere needs no name.
    names = {
        index: part.replace("_", " ")
        for index, part in enumerate(parts)
        if any(values.get(part) for values in bars.values())
    }
    legend, height = _legend(names, LEFT, bottom + 22)
    return _document([*body, *legend], title, height)


def ticks(low: float, high: float) -> list[float]:
    """About five round values that enclose a range."""
    span = high - low or abs(high) or 1.0
    raw = span / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [step * i for i in range(first, max(last, first + 1) + 1)]


def spell(value: float) -> str:
    """A tick's label."""
    return f"{value:.6g}"


def colour(index: int) -> str:
    """Colour of a series or part; the page may override it."""
    number = index % len(COLOURS)
    return f"var(--s{number + 1}, {COLOURS[number]})"


def _series(item: Series, index: int, across: "_Scale", upward: "_Scale") -> list[str]:
    points = [(across(x), upward(y)) for x, y in item.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dash = ' stroke-dasharray="5 4"' if item.dashed else ""
    found = [
        f'<polyline points="{path}" fill="none" stroke="{colour(index)}" stroke-width="2"{dash}/>'
    ]
    if not item.dashed:
        for (x, y), (raw_x, raw_y) in zip(points, item.points, strict=True):
            found.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour(index)}"><title>'
                f"{escape(item.name)}: {raw_y:.4g} at {raw_x:g}</title></circle>"
            )
    return found


def _legend(names: Mapping[int, str], left: float, top: float) -> tuple[list[str], int]:
    """Swatches with their names in rows below a chart; gives the document's height too."""
    found: list[str] = []
    x, y = left, top
    for index, name in names.items():
        width = 15 + CHARACTER * len(name) + 16
        if x > left and x + width > WIDTH:
            x, y = left, y + 18
        found += [_swatch(x, y, index), _text(x + 15, y + 9, name, "small")]
        x += width
    return found, int(y + 22)


def _swatch(x: float, y: float, index: int) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="10" height="10" fill="{colour(index)}"/>'


class _Scale:
    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self._low, self._start = low, start
        self._slope = (end - start) / (high - low)

    def __call__(self, value: float) -> float:
        return self._start + (value - self._low) * self._slope


def _scale(low: float, high: float, start: float, end: float) -> _Scale:
    return _Scale(low, high, start, end)


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="grid" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )


def _document(body: Sequence[str], title: str, height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(title)}"><style>{STYLE}</style>{"".join(body)}</svg>'
    )
