"""`specpilot replay LATTICES`: tau over node budgets by exact replay (paper section 6.4)."""

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from specpilot.cli.output import is_terminal, print_json
from specpilot.core.errors import SpecPilotError, WorkloadError

if TYPE_CHECKING:
    from specpilot.engines.base import Recording

FIELDS = ("tokens", "ids", "edge")


def command(
    lattices: Annotated[Path, typer.Argument(help="recordings/NAME.npz of a run")],
    tree: Annotated[Literal["best_first", "chain", "oracle"], typer.Option()] = "best_first",
    nodes: Annotated[str, typer.Option(help="node budgets, root included")] = "8,16,32,63",
    positions: Annotated[
        int | None, typer.Option(min=1, help="positions used; all recorded when absent")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="the table as JSON")] = False,
) -> None:
    """Rerun tree selection and verification on recorded lattices."""
    budgets = parse_budgets(nodes)
    rows = replay_table(read_recordings(lattices), tree, budgets, positions)
    if as_json:
        print_json({"tree": tree, "rows": rows})
        return
    table = Table(title=f"exact replay, {tree}", title_justify="left")
    for name in ("nodes", "τ", "95%", "steps"):
        table.add_column(name, justify="right")
    for row in rows:
        interval = f"[{row['low']:.3f}, {row['high']:.3f}]"
        table.add_row(str(row["nodes"]), f"{row['tau']:.3f}", interval, str(row["steps"]))
    Console(no_color=not is_terminal(), highlight=False).print(table)


def replay_table(
    recordings: "list[Recording]", tree: str, budgets: list[int], positions: int | None
) -> list[dict[str, Any]]:
    """tau, its interval and the number of steps, per node budget."""
    from specpilot.costmodel.replay import (
        BestFirstReplay,
        bootstrap_tau,
        mean_tau,
        replay_chain,
        replay_oracle,
    )

    depth = min(int(item.ids.shape[1]) for item in recordings)
    depth = depth if positions is None else min(depth, positions)
    best_first = [BestFirstReplay(item, depth, max(budgets)) for item in recordings]
    rows = []
    for budget in budgets:
        if tree == "best_first":
            found = [replay.at(budget) for replay in best_first]
        else:
            play = replay_chain if tree == "chain" else replay_oracle
            found = [play(item, min(depth, budget - 1)) for item in recordings]
        low, high = bootstrap_tau(found)
        steps = sum(len(item.accepted) for item in found)
        rows.append(
            {"nodes": budget, "tau": mean_tau(found), "low": low, "high": high, "steps": steps}
        )
    return rows


def parse_budgets(text: str) -> list[int]:
    """Node budgets from a list such as `8,16,32`.

    Raises:
        SpecPilotError: not whole numbers from 2 to 256.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    budgets = [int(part) for part in parts if part.isdigit()]
    if len(budgets) != len(parts) or not budgets or not 2 <= min(budgets) <= max(budgets) <= 256:
        raise SpecPilotError(
            f"'{text}' is not a list of budgets", where="--nodes", fix="write 8,16,32 (2 to 256)"
        )
    return budgets


def read_recordings(path: Path) -> "list[Recording]":
    """The recordings that a run's phase 0 stored in one file.

    Raises:
        WorkloadError: unreadable, or not such a file.
    """
    import numpy as np

    from specpilot.costmodel.replay import check_recording
    from specpilot.engines.base import Recording

    try:
        with np.load(path, allow_pickle=False) as data:
            names = sorted({name.partition(".")[0] for name in data.files}, key=int)
            found = [
                Recording(name, *(data[f"{name}.{field}"] for field in FIELDS)) for name in names
            ]
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise WorkloadError(
            f"is not a file of recordings ({error})",
            where=str(path),
            fix="give recordings/NAME.npz of a run folder",
        ) from error
    if not found:
        raise WorkloadError("holds no recording", where=str(path), fix="record requests first")
    return [check_recording(item) for item in found]
