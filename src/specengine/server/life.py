"""Loading a system, and the server's life from its first request to its last."""

import argparse
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch
import uvicorn
from transformers.utils.logging import disable_progress_bar

from specengine.decoding.engine import Engine
from specengine.decoding.options import EngineOptions
from specengine.drafters import load_drafter
from specengine.models import load_target
from specengine.server.app import WORKER_END_SECONDS, build_app
from specengine.server.connection import Connection
from specengine.server.scheduler import Scheduler
from specengine.server.service import Service
from specengine.server.sockets import bind_unix, remove_unix
from specengine.server.text import TextCodec

_log = logging.getLogger("specengine.server")


class Server(uvicorn.Server):
    """Ends on SIGTERM or SIGINT after running requests; on the second signal at once.

    Attributes:
        crashed: the engine's thread ended by a defect.
    """

    def __init__(self, config: uvicorn.Config, scheduler: Scheduler) -> None:
        super().__init__(config)
        self._scheduler = scheduler
        self.crashed = False

    def crash(self) -> None:
        """End the server because its engine is gone; any thread."""
        self.crashed = True
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: finish. Second: end at once."""
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while serving; unlike the base class, do not die of them afterwards."""
        handled = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, self.handle_exit) for number in handled}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say where."""
        await super().startup(sockets)
        for bound in sockets or []:
            _log.info("ready on %s", _address(bound))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse what waits, finish what runs, then close."""
        self._scheduler.drain()
        await super().shutdown(sockets)


def load_service(arguments: argparse.Namespace, options: EngineOptions) -> Service:
    """Load target, drafter and tokenizer.

    Raises:
        EngineError: anything that is missing, broken, or does not fit.
    """
    threads = arguments.threads or torch.get_num_threads()
    # A second OpenMP pool, here beside the worker's, makes GNU OpenMP see more threads than cores
    # and put them to sleep between products: steps would take half as long again.
    torch.set_num_threads(1)
    # A log is no place for a bar, and the last line of stderr must be the error of a bad start.
    disable_progress_bar()
    codec = TextCodec.load(arguments.target)
    target = load_target(
        arguments.target, device=arguments.device, dtype=arguments.dtype, options=options
    )
    drafter = None
    if not arguments.autoregressive:
        drafter = load_drafter(arguments.drafter_kind, arguments.drafter, target, options)
        target.taps = drafter.taps
    engine = Engine(target, drafter, options, slots=arguments.slots)
    name = arguments.model_name or arguments.target.resolve().name
    scheduler = Scheduler(
        slots=arguments.slots,
        max_queue=arguments.max_queue,
        on_start=lambda: torch.set_num_threads(threads),
    )
    return Service(engine, scheduler, codec, name, arguments.tree_hash)


def http_config(service: Service, shutdown_seconds: int) -> uvicorn.Config:
    """How uvicorn serves; running requests have `shutdown_seconds` to finish."""
    return uvicorn.Config(
        build_app(service),
        http=Connection,
        ws="none",
        loop="asyncio",
        log_config=None,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=shutdown_seconds,
    )


def serve(service: Service, arguments: argparse.Namespace, bound: socket.socket | None) -> int:
    """Serve until told to end; returns the exit code.

    Raises:
        OptionError: the Unix socket was taken while the model loaded.
    """
    server = Server(http_config(service, arguments.shutdown_timeout), service.scheduler)
    service.scheduler.on_crash = server.crash
    path: Path | None = arguments.uds
    if bound is None:
        assert path is not None
        bound = bind_unix(path)
    inode = 0 if path is None else path.stat().st_ino
    try:
        server.run(sockets=[bound])
    finally:
        bound.close()
        if path is not None:
            remove_unix(path, inode)
    ended = service.scheduler.close(WORKER_END_SECONDS)
    unfinished = service.scheduler.failed_at_close
    if unfinished:
        sys.stderr.write(f"error: the server ended before {unfinished} running requests did\n")
    if not ended:
        # Torch still computes on the worker thread; the interpreter cannot end under it.
        sys.stderr.flush()
        os._exit(1)
    return 1 if unfinished or server.crashed or server.force_exit else 0


def _address(bound: socket.socket) -> str:
    """Where to send requests: a URL, or the path of a Unix socket."""
    name = bound.getsockname()
    if bound.family == socket.AF_UNIX:
        return str(name)
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"http://{host}:{name[1]}"
