"""What a run came to, in words that hold for every ending: the first thing that a reader sees."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specpilot.core.verdict import Reason, VerdictKind

Report = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Headline:
    """The answer.

    Attributes:
        mood: `promoted`, `undecided` or `void`: how it is coloured.
        title: a few words.
        sentence: what was found, and against what.
    """

    mood: str
    title: str
    sentence: str


def headline(report: Report) -> Headline:
    """The answer of a run, finished or not."""
    final = last_final(report)
    promoted = promoted_names(report)
    what = " + ".join(promoted)
    if report["confirmed"]:
        return Headline(
            "promoted",
            f"{report['gain_over_stock']['point']:.2f} times as fast as stock, confirmed",
            f"{what}: {spell_gain(report)} on sealed requests; token forcing accepts "
            f"{report['forcing']['tokens']} tokens.",
        )
    if final is not None and final["reason"] == Reason.ISOLATION_TOO_WEAK:
        return Headline(
            "undecided",
            "Promoted in development, not confirmed",
            f"{what}: without isolation no sealed final is played, so the gain is not confirmed.",
        )
    if final is not None:
        return _unconfirmed(report, final, what)
    if promoted:
        return Headline(
            "undecided",
            "Promoted in development, no sealed final yet",
            f"{what}: not confirmed on sealed requests. {_state(report)}",
        )
    titles = {
        None: ("undecided", "Not finished"),
        "void": ("void", "Void: nothing that was timed counts"),
        "budget_spent": ("undecided", "Budget spent before anything was promoted"),
    }
    mood, title = titles.get(report["outcome"], ("undecided", "Nothing was promoted"))
    return Headline(mood, title, _state(report))


def gain_words(report: Report) -> str:
    """Whether the gain over stock is confirmed; never `not confirmed` where none was measured."""
    if report["confirmed"]:
        return "confirmed"
    if report["gain_over_stock"]["point"] is not None:
        return "not confirmed"
    return "no sealed final was played" if report["outcome"] else "no sealed final was played yet"


def spell_gain(report: Report) -> str:
    """The gain over stock with its interval."""
    gain = report["gain_over_stock"]
    return f"{gain['point']:.3f}x, 95% [{gain['low']:.3f}, {gain['high']:.3f}]"


def last_final(report: Report) -> Mapping[str, Any] | None:
    """The verdict of the last sealed final."""
    finals = [item["final"] for item in report["rounds"] if item["final"] is not None]
    return finals[-1] if finals else None


def promoted_names(report: Report) -> list[str]:
    """Names of directions that became the best, in the order planned."""
    return [item["name"] for item in report["directions"] if item["verdict"] == "promoted"]


def _unconfirmed(report: Report, final: Mapping[str, Any], what: str) -> Headline:
    if final["kind"] == VerdictKind.VOID:
        return Headline(
            "void",
            "Void: the sealed final does not count",
            f"{what}: promoted in development; the sealed final is void: {final['detail']}.",
        )
    return Headline(
        "undecided",
        "Promoted in development, not confirmed",
        f"{what}: the sealed final does not confirm it: {final['detail']}.",
    )


def _state(report: Report) -> str:
    """The run's own last words, or that it has none yet."""
    if report["detail"]:
        detail = str(report["detail"])
        return f"{detail[0].upper()}{detail[1:]}."
    return "The run has not ended; 'specpilot resume' goes on where it stands."
