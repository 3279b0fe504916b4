"""An agent that makes fixed edits, for tests and for showing what the judge does to a change.

Runs as `python -m specpilot.agents.scripted SCRIPT DIRECTION`. The script is a TOML file of steps:

    [[direction]]
    id = "faster-norm"
    name = "Shorter norm"
    factor = "kernel"
    expected_headroom = 0.05

    [[direction.step]]
    message = "Skip the second cast"
    replace = [{ path = "specengine/models/rows.py", old = "a", new = "b" }]
    write = [{ path = "specengine/new.py", text = "..." }]
    patch = "change.patch"              # beside the script
    options = { tree = "best_first" }
    operations = ["check", "time", "submit"]
"""

import sys
import tomllib
from pathlib import Path

from pydantic import Field, ValidationError

from specpilot.agents import worktree
from specpilot.agents.base import Operation
from specpilot.agents.session import Session, run_session
from specpilot.core.errors import DeploymentError, Refused
from specpilot.core.numbers import Finite
from specpilot.core.record import Record
from specpilot.core.system import OptionValue


class Replacement(Record):
    """An exact text that occurs once, and what takes its place."""

    path: str
    old: str = Field(min_length=1)
    new: str


class NewText(Record):
    """The whole content of a file."""

    path: str
    text: str


class Step(Record):
    """One commit and the operations asked for on it."""

    message: str = "Scripted edit"
    replace: tuple[Replacement, ...] = ()
    write: tuple[NewText, ...] = ()
    patch: str | None = None
    """File beside the script."""
    options: dict[str, OptionValue] = Field(default_factory=dict)
    operations: tuple[Operation, ...] = (Operation.SUBMIT,)
    close_reason: str = "the script ends here"


class ScriptedDirection(Record):
    """One direction of a script."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")
    name: str
    factor: str = "kernel"
    expected_headroom: Finite | None = None
    step: tuple[Step, ...]


class Script(Record):
    """A whole script."""

    direction: tuple[ScriptedDirection, ...]


def load_script(path: Path) -> Script:
    """Read a script.

    Raises:
        DeploymentError: unreadable, not TOML, or not a script.
    """
    try:
        return Script.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise DeploymentError(
            f"cannot be read ({error.strerror})", where=str(path), fix="check agent.script"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DeploymentError(
            f"is not valid TOML ({error})", where=str(path), fix="correct the line named"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise DeploymentError(
            f"key '{key}': {first['msg']}",
            where=str(path),
            fix="see specpilot.agents.scripted for the format",
        ) from error


def play(session: Session, direction: ScriptedDirection, script: Path, folder: Path) -> str:
    """Make each step's edits and ask for its operations; returns the last answer in short.

    Raises:
        Refused: a text to replace is not there exactly once.
    """
    last = "no operation"
    for step in direction.step:
        _edit(step, script, folder)
        worktree.commit(folder, step.message)
        for operation in step.operations:
            arguments = {"reason": step.close_reason} if operation is Operation.CLOSE else {}
            answer = session.ask(operation, arguments)
            last = f"{operation}: {answer.get('verdict', answer.get('detail', 'done'))}"
    return last


def _edit(step: Step, script: Path, folder: Path) -> None:
    for item in step.replace:
        path = _inside(folder, item.path)
        text = path.read_text(encoding="utf-8")
        if text.count(item.old) != 1:
            raise Refused(
                f"holds the text to replace {text.count(item.old)} times",
                where=item.path,
                fix="make the script's 'old' text exact and unique",
            )
        path.write_text(text.replace(item.old, item.new), encoding="utf-8")
    for new in step.write:
        path = _inside(folder, new.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(new.text, encoding="utf-8")
    if step.patch is not None:
        worktree.apply_patch(folder, (script.parent / step.patch).read_bytes())
    if step.options:
        worktree.edit_options(folder, step.options)


def _inside(folder: Path, relative: str) -> Path:
    path = (folder / relative).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise Refused("leaves the worktree", where=relative, fix="name a path inside it")
    return path


def main(arguments: list[str]) -> int:
    """Play one direction of a script."""
    path, name = Path(arguments[0]), arguments[1]

    def work(session: Session) -> str:
        found = [item for item in load_script(path).direction if item.id == name]
        if not found:
            raise Refused(f"has no direction '{name}'", where=str(path), fix="check the ids")
        return play(session, found[0], path, Path.cwd())

    return run_session(work)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
