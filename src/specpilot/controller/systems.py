"""The run's git repository: every system is a commit, and equal edits are the same commit.

Agents work in clones of their own, so that nothing they do reaches this repository's references,
hooks or configuration. What they committed is fetched, reduced to one commit with fixed author and
dates, checked path by path, moved onto the current best, and exported byte by byte to a folder
whose hash is computed again before anything starts from it.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from specpilot.agents.base import CatalogueOption
from specpilot.controller.contamination import NOTHING_KNOWN, Fingerprints, check_content
from specpilot.controller.git import GitError, git, output
from specpilot.controller.off_loop import go_on
from specpilot.controller.options_file import (
    OPTIONS_FILE,
    catalogue,
    edit_options,
    parse_options,
)
from specpilot.controller.trees import Entry, check_changes, parse_entries, tree_hash_of_folder
from specpilot.controller.worktrees import check_repository, move_aside, remove
from specpilot.core.errors import DamagedRun, Refused, SpecPilotError
from specpilot.core.system import Checkout, OptionValue, System
from specpilot.sandbox.foreign import one_line


class RebaseConflict(SpecPilotError):
    """A change does not apply to the current best."""


class SystemRepository:
    """Commits, clones and exports of one run folder."""

    def __init__(self, run_folder: Path) -> None:
        self.folder = run_folder / "repo"
        self._worktrees = run_folder / "worktrees"
        self._unreadable = run_folder / "unreadable"
        self._exports = run_folder / "exports"

    def commit_stock(self, files: Mapping[str, bytes]) -> System:
        """Make the repository and its first commit; harmless when it is there already."""
        if not (self.folder / "HEAD").is_file():
            self.folder.mkdir(parents=True, exist_ok=True)
            git(self.folder, "init", "--quiet", "--bare", "--initial-branch=best", ".")
            git(self.folder, "config", "fetch.fsckObjects", "true")
        listing = b"".join(
            b"100644 blob %s\t%s\0" % (self._blob(files[path]), path.encode())
            for path in sorted(files)
        )
        with self._index("--empty") as index:
            git(self.folder, "update-index", "-z", "--index-info", stdin=listing, environment=index)
            tree = git(self.folder, "write-tree", environment=index).stdout.decode().strip()
        commit = self._commit(tree, parent=None)
        self.name("stock", commit)
        return self.system(commit)

    def unlock(self) -> None:
        """Remove the lock files of a git that was killed: they would stop every later one.

        Only for the run's one controller, before it starts a git of its own.
        """
        for lock in self.folder.rglob("*.lock"):
            lock.unlink()

    def system(self, commit: str) -> System:
        """The system that a commit holds.

        Raises:
            Refused: `system.toml` is missing, not TOML, or holds something else than scalars.
        """
        tree = output(self.folder, "rev-parse", "--verify", f"{commit}^{{tree}}")
        raw = self._options_file(commit)
        options = parse_options(raw, f"{OPTIONS_FILE} of {commit[:12]}")
        return System(commit=commit, tree_hash=tree, options=options)

    def catalogue(self, system: System) -> tuple[CatalogueOption, ...]:
        """Every option of a system with its explanation."""
        return catalogue(self._options_file(system.commit), OPTIONS_FILE)

    def with_options(self, base: System, changes: Mapping[str, OptionValue]) -> System:
        """The system with other option values, as a commit on top of it.

        Raises:
            Refused: an option that the system does not have.
        """
        edited = edit_options(self._options_file(base.commit), changes)
        line = b"100644 blob %s\t%s\0" % (self._blob(edited), OPTIONS_FILE.encode())
        with self._index(base.commit) as index:
            git(self.folder, "update-index", "-z", "--index-info", stdin=line, environment=index)
            tree = git(self.folder, "write-tree", environment=index).stdout.decode().strip()
        return self.system(self._commit(tree, parent=base.commit))

    def name(self, branch: str, commit: str) -> None:
        """Keep a commit under a branch, so that a reader finds it."""
        git(self.folder, "update-ref", f"refs/heads/{branch}", commit)

    def open_worktree(self, direction: str, base: str) -> Path:
        """A fresh clone at `base`; the commits of an earlier one are kept under `kept/`.

        What an agent left unreadable is moved to `unreadable/` as it is.
        """
        path = self._worktrees / direction
        if os.path.lexists(path):
            try:
                self._keep(direction, path)
            except (Refused, GitError):
                move_aside(path, self._unreadable / direction)
            else:
                remove(path)
        self._worktrees.mkdir(parents=True, exist_ok=True)
        self.name(f"base/{direction}", base)
        arguments = ("--quiet", "--no-hardlinks", "--no-tags", "--single-branch")
        branch = f"base/{direction}"
        git(self._worktrees, "clone", *arguments, "--branch", branch, str(self.folder), str(path))
        git(path, "switch", "--quiet", "--create", "work")
        git(path, "remote", "remove", "origin")
        git(path, "config", "user.name", "SpecPilot agent")
        git(path, "config", "user.email", "agent@localhost")
        return path

    def collect(self, direction: str, base: str, known: Fingerprints = NOTHING_KNOWN) -> System:
        """The direction's committed tree as one deterministic commit on its base, checked.

        Args:
            known: of requests and answers, which no file may repeat.

        Raises:
            Refused: nothing was committed, or a path, a file type or a content is not allowed.
        """
        path = self._worktrees / direction
        head = self._fetch(path)
        tree = output(self.folder, "rev-parse", "--verify", f"{head}^{{tree}}")
        self._check_diff(base, tree, direction, known)
        commit = self._commit(tree, parent=base)
        self.name(f"directions/{direction}", commit)
        return self.system(commit)

    def rebase(self, change: str, onto: str) -> System:
        """A one-commit change moved onto another commit.

        Raises:
            RebaseConflict: both edit the same lines.
        """
        parent = output(self.folder, "rev-parse", "--verify", f"{change}^")
        if parent == onto:
            return self.system(change)
        merged = git(
            self.folder, "merge-tree", "--write-tree", "-z", "--name-only", onto, change,
            allowed=(0, 1),
        )  # fmt: skip
        fields = merged.stdout.decode().split("\0")
        if merged.returncode == 1:
            raise RebaseConflict(
                f"conflicts with the current best in {fields[1]}",
                where=f"commit {change[:12]}",
                fix="start from the current best and make the change again",
            )
        return self.system(self._commit(fields[0].strip(), parent=onto))

    def changed_paths(self, before: str, after: str) -> tuple[str, ...]:
        """Paths that differ between two commits or trees."""
        raw = git(self.folder, "diff-tree", "-r", "-z", "--name-only", before, after).stdout
        return tuple(sorted(part for part in raw.decode().split("\0") if part))

    def patch(self, before: str, after: str) -> bytes:
        """Binary-safe patch between two commits."""
        arguments = ("--binary", "--full-index", "--no-renames", "--no-ext-diff", "--no-textconv")
        return git(self.folder, "diff-tree", "-p", *arguments, before, after).stdout

    def apply_patches(self, base: str, patches: tuple[bytes, ...]) -> str:
        """Tree hash after applying patches to a commit, in an index of their own."""
        with self._index(base) as index:
            for patch in patches:
                git(self.folder, "apply", "--cached", "-", stdin=patch, environment=index)
            return git(self.folder, "write-tree", environment=index).stdout.decode().strip()

    def export(self, system: System, *, autoregressive: bool = False) -> Checkout:
        """A read-only folder with exactly the system's files; verified on every call.

        Raises:
            DamagedRun: the folder on the disk is not the system's tree; none of ours writes to it.
        """
        path = self._exports / system.tree_hash
        if not path.exists():
            self._write_export(system.tree_hash, path)
        try:
            found = f"tree {tree_hash_of_folder(path)[:12]}"
        except (OSError, Refused) as error:
            found = f"what cannot be read ({one_line(str(error))})"
        if found != f"tree {system.tree_hash[:12]}":
            raise DamagedRun(
                f"holds {found} instead of tree {system.tree_hash[:12]}",
                where=str(path),
                fix="delete the folder, which is written again, and resume the run",
            )
        return Checkout(system=system, path=path, autoregressive=autoregressive)

    def _write_export(self, tree: str, path: Path) -> None:
        partial = path.with_name(f"{tree}.partial")
        if partial.exists():
            remove(partial)
        for entry in self._entries(tree):
            file = partial / entry.path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(git(self.folder, "cat-file", "blob", entry.blob).stdout)
            file.chmod(0o555 if entry.mode == "100755" else 0o444)
        for folder in [*(item for item in partial.rglob("*") if item.is_dir()), partial]:
            folder.chmod(0o555)
        partial.rename(path)

    def _entries(self, tree: str) -> tuple[Entry, ...]:
        return parse_entries(git(self.folder, "ls-tree", "-r", "-l", "-z", tree).stdout)

    def _check_diff(self, base: str, tree: str, direction: str, known: Fingerprints) -> None:
        before = {entry.path: entry for entry in self._entries(base)}
        after = {entry.path: entry for entry in self._entries(tree)}
        if before == after:
            raise Refused(
                "no change is committed",
                where=f"worktree of {direction}",
                fix="commit the edit before asking for a measurement",
            )
        for entry in check_changes(before, after):
            go_on()
            content = git(self.folder, "cat-file", "blob", entry.blob).stdout
            check_content(entry.path, content, known)

    def _fetch(self, worktree: Path) -> str:
        source = worktree / ".git"
        check_repository(source)
        arguments = (
            "--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head",
            "--upload-pack", "git -c safe.directory=* upload-pack",
        )  # fmt: skip
        head = output(worktree, "rev-parse", "--verify", "HEAD")
        try:
            git(self.folder, "fetch", *arguments, str(source), f"HEAD:refs/fetched/{head}")
        except GitError:
            # Git names the source, whichever side is broken.
            self._check_own()
            raise
        return output(self.folder, "rev-parse", "--verify", f"refs/fetched/{head}")

    def _check_own(self) -> None:
        """Look whether this repository is whole: what it has lost is no agent's doing.

        Raises:
            DamagedRun: a reference or an object is broken.
        """
        try:
            git(self.folder, "fsck", "--connectivity-only", "--no-dangling", "--no-progress")
        except GitError as error:
            raise DamagedRun(
                f"is damaged: {error.what}",
                where=str(self.folder),
                fix="restore it from a copy of the run folder, then 'specpilot resume'",
            ) from error

    def _keep(self, direction: str, worktree: Path) -> None:
        head = self._fetch(worktree)
        self.name(f"kept/{direction}/{head[:12]}", head)

    def _options_file(self, commit: str) -> bytes:
        found = git(self.folder, "cat-file", "blob", f"{commit}:{OPTIONS_FILE}", allowed=(0, 128))
        if found.returncode != 0:
            where = f"{OPTIONS_FILE} of {commit[:12]}"
            raise Refused("is missing", where=where, fix="keep the options file in the tree")
        return found.stdout

    @contextmanager
    def _index(self, tree: str) -> Iterator[dict[str, str]]:
        """The environment of commands on an index of their own: several threads may work here."""
        with tempfile.TemporaryDirectory(prefix="index-", dir=self.folder) as place:
            environment = {"GIT_INDEX_FILE": str(Path(place, "index"))}
            git(self.folder, "read-tree", tree, environment=environment)
            yield environment

    def _blob(self, data: bytes) -> bytes:
        return git(self.folder, "hash-object", "-w", "--stdin", stdin=data).stdout.strip()

    def _commit(self, tree: str, parent: str | None) -> str:
        parents = () if parent is None else ("-p", parent)
        return output(self.folder, "commit-tree", *parents, "-m", f"System {tree[:12]}", tree)
