"""`specpilot replay RECORDINGS...`: tau per tree and node budget by exact replay (paper 6.4)."""

import difflib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specpilot.cli.output import print_json
from specpilot.core.errors import SpecPilotError, WorkloadError
from specpilot.core.whole_files import write_whole

if TYPE_CHECKING:
    from specengine.trees import StepCost
    from specpilot.costmodel.replay_files import RecordingFile

LARGEST = 256


def command(
    recordings: Annotated[
        list[Path], typer.Argument(help="recordings/NAME.npz of runs, or answers of /record")
    ],
    trees: Annotated[
        str, typer.Option("--trees", "--tree", help="names; all that can be replayed when absent")
    ] = "",
    nodes: Annotated[str, typer.Option(help="node budgets, root included")] = "8,16,32,63",
    positions: Annotated[
        int | None, typer.Option(min=1, help="positions used; all recorded when absent")
    ] = None,
    step_seconds: Annotated[
        str, typer.Option(help="measured steps for caddtree: rows=seconds,rows=seconds,...")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="folder for replay.json and the figure as SVG and CSV")
    ] = None,
    fit: Annotated[
        Path | None,
        typer.Option(help="folder for parameter files of trees, fitted on all requests"),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=64, help="processes that share the requests")
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="the tables as JSON")] = False,
) -> None:
    """Rerun tree selection and verification on recorded lattices."""
    budgets = parse_budgets(nodes)
    asked = parse_trees(trees)
    cost = parse_step_seconds(step_seconds)
    from specpilot.costmodel.replay_files import read_recordings

    require_files(recordings)
    files = [read_recordings(path) for path in recordings]
    require_different(files)
    document = replay_document(files, asked, budgets, positions, cost, workers)
    if fit is not None:
        document["fitted"] = fitted_parameters(fit, files, document, budgets, cost)
    if out is not None:
        document["written"] = write_files(out, files, document, max(budgets))
    if as_json:
        print_json(document)
    else:
        from specpilot.cli.replay_display import show

        show(document)


def require_files(paths: Sequence[Path]) -> None:
    """Check that every argument is a file; a shell hands on a pattern that matches nothing.

    Raises:
        WorkloadError: one is not.
    """
    for path in paths:
        if path.is_file():
            continue
        pattern = any(sign in str(path) for sign in "*?[")
        kind = "a folder" if path.is_dir() else "no file"
        raise WorkloadError(
            "matches no file" if pattern else f"is not a file of recordings ({kind})",
            where=str(path),
            fix="give files such as runs/NAME/recordings/ceiling-1.npz",
        )


def require_different(files: "Sequence[RecordingFile]") -> None:
    """Check that no recording is given twice: intervals would shrink for nothing.

    Raises:
        WorkloadError: two files are the same.
    """
    first: dict[str, Path] = {}
    for file in files:
        other = first.setdefault(file.sha256, file.path)
        if other is not file.path:
            raise WorkloadError(
                f"is the same recording as {other}", where=str(file.path), fix="give it once"
            )


def replay_document(
    files: "Sequence[RecordingFile]",
    asked: Sequence[str],
    budgets: Sequence[int],
    positions: int | None,
    cost: "StepCost | None",
    workers: int = 1,
) -> dict[str, Any]:
    """Everything that the command says, as one JSON value.

    Raises:
        WorkloadError: the recordings cannot answer what is asked.
    """
    from specpilot.costmodel.replay_fit import FITTED
    from specpilot.costmodel.replay_shares import play_shared
    from specpilot.costmodel.replay_table import TREES, by_group, play, table

    items = [item for file in files for item in file.recordings]
    groups = [group for file in files for group in file.groups]
    notes = []
    depth = _depth([int(item.ids.shape[1]) for item in items], positions)
    if asked:
        chosen = [tree for tree in TREES if tree in asked]
    else:
        left_out = set() if cost is not None else {"caddtree"}
        left_out |= set(FITTED) if len(items) < 2 else set()
        chosen = [tree for tree in TREES if tree not in left_out]
        if left_out & set(FITTED):
            notes.append(f"{' and '.join(FITTED)} left out: one request to fit on and replay")
    fitted = [tree for tree in chosen if tree in FITTED]
    if fitted:
        notes.append(
            f"parameters of {' and '.join(fitted)} are cross-fitted: requests are halved within "
            "their benchmark, each half is replayed with what was fitted on the other"
        )
    if workers == 1:
        played = play(items, groups, chosen, budgets, depth, cost)
    else:
        played = play_shared(items, groups, chosen, budgets, depth, cost, workers)
    by_benchmark = by_group(groups)
    return {
        "files": [
            {"path": str(file.path), "sha256": file.sha256, "requests": len(file.recordings)}
            for file in files
        ],
        "positions": depth,
        "trees": chosen,
        "notes": notes,
        "rows": [asdict(row) for row in table(played, range(len(items)))],
        "benchmarks": {
            name: [asdict(row) for row in table(played, indices)]
            for name, indices in by_benchmark.items()
        },
    }


def fitted_parameters(
    folder: Path,
    files: "Sequence[RecordingFile]",
    document: dict[str, Any],
    budgets: Sequence[int],
    cost: "StepCost | None",
) -> list[dict[str, Any]]:
    """Write parameter files; the options that name them, and the temperature's."""
    from specpilot.costmodel.replay_parameters import fitted_temperature, write_parameters

    items = [item for file in files for item in file.recordings]
    depth = document["positions"]
    temperature = fitted_temperature(items, budgets, depth)
    found: list[dict[str, Any]] = [{"tree": "best_first", "tree_temperature": temperature}]
    for tree, path in write_parameters(folder, items, depth, cost):
        found.append({"tree": tree, "tree_file": path})
    return found


def write_files(
    out: Path, files: "Sequence[RecordingFile]", document: dict[str, Any], max_nodes: int
) -> list[str]:
    """Write the document and the paper's Figure 10 of these recordings; their paths."""
    import json

    from specpilot.costmodel.replay_figure import curves, figure_csv, figure_svg

    items = [item for file in files for item in file.recordings]
    found = curves(items, document["positions"], max_nodes)
    hashes = ", ".join(file.sha256[:12] for file in files)
    title = f"Tokens per step τ in exact replay of {len(items)} requests ({hashes})"
    texts = {
        "replay.json": json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n",
        "tau_over_nodes.svg": figure_svg(found, title) + "\n",
        "tau_over_nodes.csv": figure_csv(found),
    }
    write_whole(out, texts)
    return [str(out / name) for name in texts]


def parse_budgets(text: str) -> list[int]:
    """Node budgets from a list such as `8,16,32`, ascending.

    Raises:
        SpecPilotError: not whole numbers from 2 to 256.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    wrong = [part for part in parts if not part.isdecimal() or len(part) > 3]
    budgets = sorted({int(part) for part in parts if part not in wrong})
    if wrong or not budgets or not 2 <= budgets[0] <= budgets[-1] <= LARGEST:
        raise SpecPilotError(
            f"'{text}' is not a list of budgets", where="--nodes", fix="write 8,16,32 (2 to 256)"
        )
    return budgets


def parse_trees(text: str) -> list[str]:
    """Names of trees from a list such as `chain,best_first`; none asked for means all.

    Raises:
        SpecPilotError: an unknown name.
    """
    from specpilot.costmodel.replay_table import TREES

    names = [part.strip() for part in text.split(",") if part.strip()]
    for name in names:
        if name not in TREES:
            close = difflib.get_close_matches(name, TREES, n=1)
            fix = f"did you mean '{close[0]}'?" if close else f"known trees: {', '.join(TREES)}"
            raise SpecPilotError(f"unknown tree '{name}'", where="--trees", fix=fix)
    return names


def parse_step_seconds(text: str) -> "StepCost | None":
    """Cost of a step over its rows, fitted to a list such as `8=0.021,32=0.024`.

    Raises:
        SpecPilotError: not such a list, or times that fit no cost.
    """
    if not text.strip():
        return None
    from specengine.errors import OptionError
    from specengine.trees.step_cost import fit_step_cost

    try:
        pairs = [part.split("=") for part in text.split(",") if part.strip()]
        return fit_step_cost({int(rows): float(seconds) for rows, seconds in pairs})
    except (ValueError, OptionError) as error:
        raise SpecPilotError(
            f"'{text}' are not times of steps",
            where="--step-seconds",
            fix="write 8=0.021,16=0.022: two or more numbers of rows, each with its seconds",
        ) from error


def _depth(recorded: Sequence[int], positions: int | None) -> int:
    if positions is not None and positions > min(recorded):
        raise WorkloadError(
            f"hold {min(recorded)} positions, asked are {positions}",
            where="the recordings",
            fix="ask for fewer with --positions, or record deeper",
        )
    return min(recorded) if positions is None else positions
