"""The built-in agent: option sweeps and memory entries, without a language model.

Runs as `python -m specpilot.agents.playbook` in a direction's worktree. It asks for the cheapest
evidence first, closes the direction on a written bound when that promises less than the brief's
minimum, and otherwise commits the change and submits it (paper section 3.2). A patch is checked
before; options that the engine ships with fail their timed run as early as they would a check.
Deterministic: the same brief and answers give the same commits.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specpilot.agents import worktree
from specpilot.agents.base import MemoryOffer
from specpilot.agents.session import Session, run_session
from specpilot.core.errors import SpecPilotError
from specpilot.core.system import OptionValue

Options = dict[str, OptionValue]
MAX_TRIED = 2
"""The best setting, and one refined second attempt."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One setting of the grid with its evidence."""

    options: Options
    headroom: float
    method: str
    detail: str


class Playbook:
    """Works through one direction; `session` talks to the controller and to the journal."""

    def __init__(self, session: Session, folder: Path) -> None:
        self._session = session
        self._brief = session.brief
        self._folder = folder
        self._patched = False

    def run(self) -> str:
        """Returns what became of the direction, in one line."""
        offer = self._offer()
        if offer is not None:
            self._apply(offer)
        candidates = self._rank(self._settings(offer))
        best = candidates[0] if candidates else None
        if best is None:
            return self._close("no setting differs from the base system", None)
        if best.headroom < self._brief.minimum_headroom:
            return self._close(
                f"{best.method} bounds the best setting, {_spell(best.options)}, at "
                f"{best.headroom:+.1%}, below {self._brief.minimum_headroom:.0%} ({best.detail})",
                best.headroom,
            )
        return self._try_out(candidates)

    def _offer(self) -> MemoryOffer | None:
        """The entry to reuse: a direction about one mechanism is offered at most that one."""
        named = [entry for entry in self._brief.memory if entry.name == self._brief.mechanism]
        return named[0] if named else None

    def _apply(self, offer: MemoryOffer) -> None:
        self._session.note(f"applies memory entry {offer.name}: {offer.summary}")
        patch = (Path(offer.folder) / "delta.patch").read_bytes()
        try:
            worktree.apply_patch(self._folder, patch)
            worktree.commit(self._folder, f"Apply memory entry {offer.name}")
            self._patched = True
        except SpecPilotError:
            # The base may hold the entry's code already; then its options are all that is left.
            worktree.restore(self._folder, "HEAD")
            self._session.note(f"{offer.name} does not apply as a patch; only its options are used")

    def _settings(self, offer: MemoryOffer | None) -> list[Options]:
        known = {option.name: option.value for option in self._brief.catalogue}
        settings = [dict(item) for item in self._brief.grid]
        if offer is not None and offer.options not in settings:
            settings.insert(0, dict(offer.options))
        changing = []
        for setting in settings:
            differing = {k: v for k, v in setting.items() if known.get(k) != v}
            if differing and differing not in changing:
                changing.append(differing)
        return changing

    def _rank(self, settings: list[Options]) -> list[Candidate]:
        """Settings with the most promising first; ties keep the grid's order."""
        found = []
        for options in settings:
            answer = self._session.ask("headroom", {"options": options})
            found.append(Candidate(options, answer["headroom"], answer["method"], answer["detail"]))
        return sorted(found, key=lambda candidate: -candidate.headroom)

    def _try_out(self, candidates: list[Candidate]) -> str:
        outcome = "nothing was timed"
        for candidate in candidates[:MAX_TRIED]:
            if candidate.headroom < self._brief.minimum_headroom:
                break
            start = worktree.head(self._folder)
            worktree.edit_options(self._folder, candidate.options)
            worktree.commit(self._folder, f"{self._brief.name}: {_spell(candidate.options)}")
            fault = self._fault()
            if fault is not None:
                outcome = f"{_spell(candidate.options)} failed its check ({fault})"
                worktree.restore(self._folder, start)
                continue
            judged = self._submit()
            outcome = f"{_spell(candidate.options)}: {judged['verdict']} ({judged['detail']})"
            if judged["verdict"] == "promoted":
                return f"submitted {outcome}"[:500]
            if judged["attempts_left"] < 1 or (judged.get("gain") or {}).get("point", 0.0) > 1.0:
                break
            worktree.restore(self._folder, start)
        return self._close(f"measured: {outcome}"[:500], None)

    def _fault(self) -> str | None:
        """What a short check finds wrong with a patch."""
        if not self._patched:
            return None
        check = self._session.ask("check", {})
        return None if check["passed"] else str(check["detail"])

    def _submit(self) -> dict[str, Any]:
        """A paired run that promotes what it earns; once more if the first settled nothing.

        Not `time` first: between its answer and a `submit`, another direction would be timed
        against a base that is about to change.
        """
        judged = self._session.ask("submit", {"retry": 0})
        if judged["verdict"] in ("void", "undecided") and judged["attempts_left"] > 0:
            return self._session.ask("submit", {"retry": 1})
        return judged

    def _close(self, reason: str, bound: float | None) -> str:
        self._session.ask("close", {"reason": reason[:500], "bound": bound})
        return f"closed: {reason}"


def _spell(options: Options) -> str:
    return ", ".join(f"{name} = {value}" for name, value in options.items())


if __name__ == "__main__":
    sys.exit(run_session(lambda session: Playbook(session, Path.cwd()).run()))
