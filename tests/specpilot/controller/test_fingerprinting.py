"""What the current best holds already may stay in commits."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from specpilot.controller.fingerprinting import known_to
from specpilot.loop.run import Run

ASKED = "Name the longest river that crosses exactly two borders, and say why it was dammed twice."


def run_in(folder: Path) -> Any:
    """A run of one request whose stock is empty."""
    for name in ("stock", "patched"):
        (folder / name).mkdir()
    (folder / "patched" / "x.py").write_text(f"# {ASKED}\n")
    request = SimpleNamespace(benchmark="own", prompt_token_ids=(1, 2, 3))
    return SimpleNamespace(
        state=SimpleNamespace(noise=None, rounds=()),
        stock=SimpleNamespace(tree_hash="stock"),
        best=SimpleNamespace(tree_hash="stock"),
        systems=SimpleNamespace(export=lambda s: SimpleNamespace(path=folder / s.tree_hash)),
        development=(request,),
        sealed=(),
        parts=SimpleNamespace(decode=lambda _: ASKED),
        deployment=SimpleNamespace(workload=SimpleNamespace(benchmarks=())),
        known=None,
    )


def test_what_the_best_holds_may_stay(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    assert known_to(cast(Run, run)).found_in(ASKED.encode()) is not None

    run.best.tree_hash = "patched"

    assert known_to(cast(Run, run)).found_in(ASKED.encode()) is None
