"""`specpilot memory …`: what earlier runs proved."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from specpilot.cli.console import console
from specpilot.cli.output import Finished, print_json, say
from specpilot.cli.runs import RUNS
from specpilot.core.errors import ExitCode, Refused
from specpilot.memory.entry import StoredEntry
from specpilot.memory.registry import Registry

Folder = Annotated[Path, typer.Option("--memory", help="folder of entries")]
AsJson = Annotated[bool, typer.Option("--json", help="as JSON")]
DEFAULT = RUNS / "memory"


def build_app() -> typer.Typer:
    """The sub-commands."""
    app = typer.Typer(no_args_is_help=True, help="The entries of proven mechanisms.")
    app.command("list")(list_entries)
    app.command("show")(show)
    app.command("verify")(verify)
    app.command("export")(export)
    app.command("import")(import_file)
    return app


def list_entries(memory: Folder = DEFAULT, as_json: AsJson = False) -> None:
    """List all entries with the gain they were promoted at."""
    registry = Registry(memory)
    rows = [_row(registry.get(entry_id)) for entry_id in registry.ids()]
    if as_json:
        print_json(rows)
        return
    if not rows:
        say(_empty(memory))
        return
    table = Table()
    for name in ("id", "gain", "options", "requires", "device"):
        # Other commands take an id whole: it is not to be cut.
        table.add_column(name, no_wrap=name == "id", overflow="fold")
    for row in rows:
        options = ", ".join(f"{k} = {v}" for k, v in row["options"].items())
        gain = row["gain"]
        shown = f"{gain['point']:.3f}x" if gain else "-"
        table.add_row(row["id"], shown, options, ", ".join(row["requires"]), row["device_kind"])
    console(160).print(table)


def show(
    entry: Annotated[str, typer.Argument(help="id of the entry, or its name")],
    memory: Folder = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Show one entry: contract, evidence, limits and its delta."""
    stored = Registry(memory).find(entry)
    if as_json:
        print_json({"id": stored.id, **stored.entry.to_json(), "evidence": stored.evidence})
        return
    for name, data in stored.files().items():
        if name != "evidence.json":
            say(data.decode(errors="replace"))
    gain = _row(stored)["gain"]
    if gain:
        say(f"gain {gain['point']:.3f}x [{gain['low']:.3f}, {gain['high']:.3f}]")


def verify(
    entry: Annotated[str | None, typer.Argument(help="one entry; all when absent")] = None,
    memory: Folder = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Apply entries to the installed stock and compare the tree with their source system's."""
    from specpilot.engines.stock_tree import read_stock_tree
    from specpilot.memory.admission import verify_entry

    registry = Registry(memory)
    names = [entry] if entry is not None else list(registry.ids())
    results = []
    # An empty folder is told without reading the engine.
    stock = read_stock_tree({}) if names else {}
    for name in names:
        try:
            verify_entry(registry, registry.find(name), stock)
            results.append({"entry": name, "exact": True, "detail": "gives its source system"})
        except Refused as error:
            results.append({"entry": name, "exact": False, "detail": str(error)})
    if as_json:
        print_json(results)
    elif not results:
        say(f"{_empty(memory)}; nothing to verify")
    else:
        for item in results:
            say(f"{'ok    ' if item['exact'] else 'failed'} {item['entry']}: {item['detail']}")
    if not all(item["exact"] for item in results):
        raise Finished(ExitCode.REFUSED)


def export(
    file: Annotated[Path, typer.Argument(help="zip file to write")],
    entry: Annotated[list[str] | None, typer.Option(help="entries; all when absent")] = None,
    memory: Folder = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Write entries and what they require to one file."""
    from specpilot.memory.transfer import export_entries

    registry = Registry(memory)
    chosen = entry or registry.ids()
    if not chosen:
        raise Refused(
            "holds no entries, so no file is written",
            where=str(memory),
            fix="a run whose sealed final confirms leaves some; --memory names another folder",
        )
    written = export_entries(registry, chosen, file)
    _tell(written, "exported", as_json=as_json)


def import_file(
    file: Annotated[Path, typer.Argument(help="zip file of entries")],
    memory: Folder = DEFAULT,
    as_json: AsJson = False,
) -> None:
    """Read exported entries; they are timed again before a run uses them."""
    from specpilot.memory.transfer import import_entries

    _tell(import_entries(Registry(memory), file), "imported", as_json=as_json)


def _empty(memory: Path) -> str:
    return f"{memory} holds no entries: a run whose sealed final confirms leaves some"


def _tell(ids: tuple[str, ...], what: str, *, as_json: bool) -> None:
    if as_json:
        print_json({what: list(ids)})
    else:
        say(f"{what} {len(ids)}: {', '.join(ids)}")


def _row(stored: StoredEntry) -> dict[str, Any]:
    gain = stored.evidence.get("gain")
    return {
        "id": stored.id,
        "name": stored.entry.name,
        "options": stored.entry.options,
        "requires": list(stored.entry.requires),
        "device_kind": stored.entry.device_kind,
        "gain": gain["overall"] if isinstance(gain, dict) else None,
    }
