"""Charts as a reader sees them: by their coordinates no text lies on another or leaves the page."""

import xml.etree.ElementTree as ET
from collections.abc import Iterator

import pytest

from specpilot.report.charts import WIDTH, Series, line_chart, stacked_bars
from specpilot.report.figures import PARTS

SVG = "{http://www.w3.org/2000/svg}"
Box = tuple[float, float, float, float]


def texts(svg: str) -> Iterator[tuple[str, Box]]:
    """Each text with its box, at a width of half its height per character."""
    for item in ET.fromstring(svg).iter(f"{SVG}text"):
        size = {"title": 13.0, "small": 11.0}.get(item.get("class", ""), 12.0)
        text = item.text or ""
        width = 0.55 * size * len(text)
        left = float(item.get("x", "0")) - width * {"end": 1.0, "middle": 0.5}.get(
            item.get("text-anchor", ""), 0.0
        )
        bottom = float(item.get("y", "0"))
        yield text, (left, bottom - 0.75 * size, left + width, bottom)


def apart(one: Box, other: Box) -> bool:
    """Whether two boxes share no point."""
    return one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


CHARTS = {
    "lines": line_chart(
        "Predicted speedup over AR, S(N) = τ(N) / c(N)",
        "verified nodes N",
        "S(N)",
        [
            Series("starting system", ((2, 1.1), (64, 2.8))),
            Series("best system", ((2, 1.2), (64, 0.1))),
            Series("starting system, as played", ((2, 2.1), (64, 2.1)), dashed=True),
            Series("one more system with a long name", ((2, 2.1), (64, 2.1))),
        ],
    ),
    "flat": line_chart("t", "x", "y", [Series("a", ((1, 0.00012), (2, 0.00012)))]),
    "bars": stacked_bars(
        "Time of one step by kernel class",
        "ms",
        {name: dict.fromkeys(PARTS, 20.0) for name in ("before", "before: floor")},
        PARTS,
    ),
}


@pytest.mark.parametrize("svg", CHARTS.values(), ids=CHARTS)
def test_no_text_lies_on_another_or_outside(svg: str) -> None:
    found = list(texts(svg))
    _, _, width, height = map(float, ET.fromstring(svg).get("viewBox", "").split())
    assert width == WIDTH
    for index, (text, box) in enumerate(found):
        assert box[0] >= 0, text
        assert box[2] <= width, text
        assert box[3] <= height, text
        for other, where in found[index + 1 :]:
            assert apart(box, where), (text, other)


@pytest.mark.parametrize("svg", CHARTS.values(), ids=CHARTS)
def test_no_swatch_lies_on_a_text(svg: str) -> None:
    swatches = [item for item in ET.fromstring(svg).iter(f"{SVG}rect") if item.get("width") == "10"]
    assert swatches
    for item in swatches:
        x, y = float(item.get("x", "0")), float(item.get("y", "0"))
        for text, where in texts(svg):
            assert apart((x, y, x + 10, y + 10), where), text


def test_a_part_without_time_is_not_named() -> None:
    svg = stacked_bars("t", "ms", {"a": {"attention": 1.0, "recurrent": 0.0}}, PARTS)
    names = [text for text, _ in texts(svg)]
    assert "attention" in names
    assert "recurrent" not in names
