"""The run's repository: equal edits are equal commits, and nothing else gets in or out."""

import os
import subprocess
from pathlib import Path

import pytest
from simulation import CODE, commit_all

from specpilot.controller.systems import RebaseConflict, SystemRepository
from specpilot.controller.trees import ForbiddenPath
from specpilot.core.errors import DamagedRun, Refused
from specpilot.core.system import System
from specpilot.engines.simulated import SimulatedAdapter


@pytest.fixture
def systems(tmp_path: Path) -> SystemRepository:
    return SystemRepository(tmp_path)


@pytest.fixture
def stock(systems: SystemRepository) -> System:
    return systems.commit_stock(SimulatedAdapter().stock_tree())


def edit(systems: SystemRepository, stock: System, name: str, file: str, text: str) -> System:
    worktree = systems.open_worktree(name, stock.commit)
    path = worktree / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    commit_all(worktree)
    return systems.collect(name, stock.commit)


def test_stock_is_the_same_commit_everywhere(tmp_path: Path) -> None:
    files = SimulatedAdapter().stock_tree()

    first = SystemRepository(tmp_path / "a").commit_stock(files)
    second = SystemRepository(tmp_path / "b").commit_stock(dict(reversed(list(files.items()))))

    assert first == second
    assert first.options["tree"] == "chain"


def test_equal_edits_are_one_system(systems: SystemRepository, stock: System) -> None:
    first = edit(systems, stock, "one", "specengine/new.py", "x = 1\n")
    second = edit(systems, stock, "two", "specengine/new.py", "x = 1\n")

    assert first == second
    assert first != stock


def test_edits_of_different_options_never_conflict(
    systems: SystemRepository, stock: System
) -> None:
    options = list(stock.options)
    changed = {"tree": "best_first", "positions": 8, "nodes": 32, "linear": "prepacked",
               "fused_projections": True}  # fmt: skip
    assert set(changed) == set(options)
    stack = stock
    for name, value in changed.items():
        stack = systems.rebase(systems.with_options(stock, {name: value}).commit, stack.commit)

    assert stack.options == changed


def test_edits_of_the_same_line_conflict(systems: SystemRepository, stock: System) -> None:
    one = systems.with_options(stock, {"nodes": 8})
    two = systems.with_options(stock, {"nodes": 16})

    with pytest.raises(RebaseConflict, match=r"system\.toml"):
        systems.rebase(two.commit, one.commit)


def test_unknown_option_names_the_nearest(systems: SystemRepository, stock: System) -> None:
    with pytest.raises(Refused, match="did you mean 'nodes'"):
        systems.with_options(stock, {"node": 8})


@pytest.mark.parametrize(
    "file",
    ["README.md", "src/specpilot/core/verdict.py", "specengine.py", "specengine/sitecustomize.py",
     "specengine/x.pth", "specengine/fast.so", "specengine/__pycache__/a.py", ".gitattributes"],
)  # fmt: skip
def test_other_paths_are_refused(systems: SystemRepository, stock: System, file: str) -> None:
    with pytest.raises(ForbiddenPath, match=file.rsplit("/", 1)[-1]):
        edit(systems, stock, "bad", file, "x = 1\n")


def test_links_are_refused(systems: SystemRepository, stock: System) -> None:
    worktree = systems.open_worktree("link", stock.commit)
    (worktree / "specengine" / "leak.py").symlink_to("/etc/hostname")
    commit_all(worktree)

    with pytest.raises(ForbiddenPath, match="link"):
        systems.collect("link", stock.commit)


def test_submodules_are_refused(systems: SystemRepository, stock: System) -> None:
    worktree = systems.open_worktree("module", stock.commit)
    inner = worktree / "specengine" / "inner"
    inner.mkdir()
    environment = {"PATH": os.environ["PATH"], "HOME": str(worktree)}
    subprocess.run(["git", "init", "-q"], cwd=inner, env=environment, check=True)
    for key, value in (("user.name", "a"), ("user.email", "a@b")):
        subprocess.run(["git", "config", key, value], cwd=inner, env=environment, check=True)
    (inner / "file").write_text("x")
    commit_all(inner)
    commit_all(worktree)

    with pytest.raises(ForbiddenPath, match="submodule"):
        systems.collect("module", stock.commit)


def test_nothing_committed_is_refused(systems: SystemRepository, stock: System) -> None:
    systems.open_worktree("idle", stock.commit)

    with pytest.raises(Refused, match="no change is committed"):
        systems.collect("idle", stock.commit)


def test_a_reopened_worktree_keeps_the_old_commits(
    systems: SystemRepository, stock: System
) -> None:
    edit(systems, stock, "again", "specengine/new.py", "x = 1\n")

    worktree = systems.open_worktree("again", stock.commit)

    assert not (worktree / "specengine" / "new.py").exists()
    kept = subprocess.run(
        ["git", "branch", "--list", "kept/again/*"],
        cwd=systems.folder, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert kept.strip()


def test_hooks_and_attributes_of_a_worktree_change_nothing(
    systems: SystemRepository, stock: System, tmp_path: Path
) -> None:
    worktree = systems.open_worktree("hooks", stock.commit)
    marker = tmp_path / "ran"
    for name in ("post-commit", "pre-receive", "reference-transaction", "post-checkout"):
        hook = worktree / ".git" / "hooks" / name
        hook.parent.mkdir(exist_ok=True)
        hook.write_text(f"#!/bin/sh\ntouch {marker}\n")
        hook.chmod(0o755)
    code = worktree / CODE
    code.write_text(code.read_text() + "# $Id$\r\n")
    (worktree / ".git" / "info").mkdir(exist_ok=True)
    (worktree / ".git" / "info" / "attributes").write_text("* ident text eol=lf export-ignore\n")
    commit_all(worktree)
    marker.unlink(missing_ok=True)

    system = systems.collect("hooks", stock.commit)
    checkout = systems.export(system)

    assert not marker.exists()
    assert (checkout.path / CODE).is_file()


def test_an_export_that_was_touched_is_damage_of_the_run(
    systems: SystemRepository, stock: System
) -> None:
    path = systems.export(stock).path
    file = path / CODE
    assert oct(file.stat().st_mode)[-3:] == "444"
    file.chmod(0o644)
    file.write_text("speed = 9.0\n")

    with pytest.raises(DamagedRun, match="instead of"):
        systems.export(stock)

    file.parent.chmod(0o755)
    file.unlink()
    file.symlink_to("/dev/null")
    with pytest.raises(DamagedRun, match="is a link"):
        systems.export(stock)


def test_patches_reproduce_a_tree(systems: SystemRepository, stock: System) -> None:
    system = edit(systems, stock, "one", "specengine/data.txt", "\x01 no line end")

    patch = systems.patch(stock.commit, system.commit)

    assert systems.apply_patches(stock.commit, (patch,)) == system.tree_hash
