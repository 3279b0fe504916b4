"""The embedded engine as servers under test: one fresh, confined process per arm.

A server starts from an exported checkout with private caches, and is used only after it echoed the
tree hash, the options and the package folder it was started from. Stopping ends its whole process
group, verified; killing the judge ends it too (`specpilot.sandbox.guard`).
"""

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from specpilot.core.deployment import Deployment
from specpilot.core.measurement import DeviceState, Isolation
from specpilot.core.system import Checkout
from specpilot.engines.base import Identity
from specpilot.engines.client import EngineClient
from specpilot.engines.embedded_server import EmbeddedServer, LaunchFolders, check_health
from specpilot.engines.stock_tree import read_stock_tree
from specpilot.engines.target_folder import FolderHashes, Vocabulary, model_folder, read_vocabulary
from specpilot.sandbox.devices import device_nodes, device_state
from specpilot.sandbox.environment import server_environment
from specpilot.sandbox.policy import HOME, Bind, Policy, Role, interpreter_binds, without_judge
from specpilot.sandbox.process import start

SOCKET = "engine.sock"
INSIDE = Path("/run/engine")
"""Where a confined server finds its socket folder."""
HIDDEN = ("journal.jsonl", "records", "recordings", "repo", "worktrees", "unreadable", "sealed")
"""Parts of a run folder that no server may see."""


class EmbeddedAdapter:
    """Starts systems of one deployment on the embedded engine."""

    def __init__(
        self,
        deployment: Deployment,
        run_folder: Path,
        *,
        start_deadline_seconds: float = 600.0,
        stream: bool = True,
    ) -> None:
        """Resolve the models.

        Raises:
            SpecPilotError: a model is neither a folder nor on the hub.
        """
        self._deployment = deployment
        self._run_folder = run_folder.absolute()
        self._deadline = start_deadline_seconds
        self._stream = stream
        self._target = model_folder(deployment.target.model)
        self._drafter = model_folder(deployment.drafter.model)
        self._vocabulary = read_vocabulary(self._target)
        self._hashes = FolderHashes()
        self._launches = 0

    @property
    def vocabulary(self) -> Vocabulary:
        """Vocabulary size and stop tokens of the target."""
        return self._vocabulary

    @property
    def stop_ids(self) -> frozenset[int]:
        """Tokens that may end an output."""
        return self._vocabulary.stop_ids

    def stock_tree(self) -> Mapping[str, bytes]:
        """The installed engine and every option at stock's value."""
        return read_stock_tree(self._deployment.engine.options)

    async def identity(self) -> Identity:
        """Hashes of the target, the drafter and the tokenizer as they lie on the disk now."""
        return await asyncio.to_thread(
            lambda: Identity(
                model_hash=self._hashes.model(self._target),
                drafter_hash=self._hashes.model(self._drafter),
                tokenizer_hash=self._hashes.tokenizer(self._target),
            )
        )

    async def device_state(self, device: str) -> DeviceState:
        """What the device looks like now."""
        return await asyncio.to_thread(device_state, device)

    async def launch(
        self, checkout: Checkout, device: str, *, threads: int | None = None
    ) -> EmbeddedServer:
        """Start a server and verify what it is.

        Raises:
            EngineFailure: it did not start in time, or is not what was asked for.
            Refused: the sandbox would expose a hidden path.
            SpecPilotError: a path or device is missing.
        """
        folders = self._make_folders(checkout)
        threads = threads or self._deployment.engine.threads or len(os.sched_getaffinity(0))
        policy = self._policy(checkout, device, folders, threads)
        server: EmbeddedServer | None = None
        try:
            with folders.log.open("wb") as log:
                process = await start(
                    policy,
                    self._command(checkout, device, threads),
                    self._deployment.platform.isolation,
                    stdout=log,
                    stderr=log,
                )
            client = EngineClient(folders.sockets / SOCKET, self._vocabulary, stream=self._stream)
            server = EmbeddedServer(process, await client.__aenter__(), folders)
            health = await server.ready(self._deadline)
            check_health(health, checkout)
        except BaseException:
            # Whatever ended the start, cancellation included, the process must not stay.
            if server is not None:
                await server.stop()
            shutil.rmtree(folders.scratch, ignore_errors=True)
            raise
        return server

    def _make_folders(self, checkout: Checkout) -> LaunchFolders:
        self._launches += 1
        arm = "ar" if checkout.autoregressive else "sd"
        name = f"{self._launches:04d}-{checkout.system.tree_hash[:12]}-{arm}"
        logs, control = self._run_folder / "logs", self._run_folder / "control"
        for folder in (logs, control):
            folder.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=control))
        folders = LaunchFolders(scratch=scratch, log=logs / f"{scratch.name}.log")
        for part in ("socket", "home", "tmp"):
            (scratch / part).mkdir()
        return folders

    def _policy(
        self, checkout: Checkout, device: str, folders: LaunchFolders, threads: int
    ) -> Policy:
        plain = self._deployment.platform.isolation is Isolation.NONE
        home = folders.scratch / "home" if plain else Path(HOME)
        temporary = folders.scratch / "tmp" if plain else Path("/tmp")
        environment = server_environment(home, temporary, checkout.path.absolute(), threads)
        if device != "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = device_state(device).uuid
        models = {*_model_binds(self._target), *_model_binds(self._drafter)}
        return Policy(
            role=Role.SERVER,
            read_only=(
                *interpreter_binds(),
                *without_judge(folders.scratch),
                Bind(checkout.path.absolute()),
                *models,
            ),
            writable=(Bind(folders.sockets, None if plain else INSIDE),),
            environment=environment,
            working_folder=folders.sockets if plain else INSIDE,
            device_nodes=device_nodes(device),
            hidden=tuple(self._run_folder / name for name in HIDDEN),
        )

    def _command(self, checkout: Checkout, device: str, threads: int) -> list[str]:
        arguments = {
            "--target": self._target,
            "--drafter": self._drafter,
            "--drafter-kind": self._deployment.drafter.kind,
            "--system": checkout.path.absolute() / "system.toml",
            "--dtype": self._deployment.target.dtype,
            # A confined GPU server sees one device, whatever its number outside.
            "--device": "cpu" if device == "cpu" else "cuda:0",
            "--threads": threads,
            "--slots": max(self._deployment.regime.concurrency),
            "--uds": SOCKET,
            "--tree-hash": checkout.system.tree_hash,
        }
        if checkout.autoregressive:
            del arguments["--drafter"], arguments["--drafter-kind"]
        # -P: the socket folder, which the server may write to, is no place to import from.
        command = [sys.executable, "-P", "-m", "specengine.server"]
        command += [part for name, value in arguments.items() for part in (name, str(value))]
        return [*command, "--autoregressive"] if checkout.autoregressive else command


def _model_binds(folder: Path) -> set[Bind]:
    """The folder, and the places that its links point to, as in a hub's cache."""
    linked = {path.resolve().parent for path in folder.rglob("*") if path.is_symlink()}
    outside = {place for place in linked if not place.is_relative_to(folder.resolve())}
    return {Bind(place) for place in (folder, *outside)}
