"""The server's command line and life: load, listen, serve, end."""

import argparse
import gc
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from specengine.command_line import Parser, whole
from specengine.decoding.options import EngineOptions, load_options
from specengine.errors import CheckpointError, EngineError, OptionError
from specengine.server.sockets import bind_tcp, check_unix
from specengine.shards import check_shards

INTERRUPTED = 130


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; `--help` describes it.

    Raises:
        OptionError: an argument is missing, unknown or ill-formed.
    """
    parser = Parser(prog="python -m specengine.server", description="Serve one system over HTTP.")
    add = parser.add_argument
    add("--target", type=Path, required=True, help="folder of the target model")
    add("--drafter", type=Path, help="folder of the drafter")
    add("--drafter-kind", default="dflash2", help="kind of the drafter (default: %(default)s)")
    add("--system", type=Path, help="system.toml with the options; defaults when absent")
    add("--autoregressive", action="store_true", help="decode without the drafter")
    add("--dtype", default="bfloat16", help="bfloat16 or float32 (default: %(default)s)")
    add("--device", default="cpu", help="cpu or cuda:N (default: %(default)s)")
    add("--threads", type=whole(1), help="CPU threads of torch (default: torch's own)")
    add("--uds", type=Path, help="listen on this Unix socket")
    add("--host", default="127.0.0.1", help="listen on this address (default: %(default)s)")
    add(
        "--port", type=_port, default=8000, help="TCP port, 0 for a free one (default: %(default)s)"
    )
    add("--slots", type=whole(1), default=1, help="requests that run side by side")
    add("--max-queue", type=whole(0), default=64, help="requests that may wait (then 429)")
    add("--shutdown-timeout", type=whole(1), default=60, help="seconds to finish after SIGTERM")
    add("--tree-hash", help="echoed by /health")
    add("--model-name", help="name that clients see (default: the target's folder)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server; returns the exit code.

    0 after SIGTERM or SIGINT with every running request finished; 1 for a bad start (one line on
    stderr), an end before running requests finished, or a defect; 130 for an interrupted start.
    """
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(name)s: %(message)s"
    )
    try:
        return _serve(parse_arguments(arguments))
    except EngineError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except OSError as error:
        where = error.filename or "the machine"
        reason = error.strerror or error
        sys.stderr.write(f"error: {where}: {reason}; check who may read it, and the disk\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("interrupted while loading\n")
        return INTERRUPTED


def _serve(arguments: argparse.Namespace) -> int:
    system = EngineOptions() if arguments.system is None else load_options(arguments.system)
    if arguments.drafter is None and not arguments.autoregressive:
        raise OptionError(
            "is missing", where="--drafter", fix="name its folder, or pass --autoregressive"
        )
    # Everything that can be refused cheaply is refused before torch is imported.
    _check_folders(arguments)
    bound = None
    if arguments.uds is not None:
        check_unix(arguments.uds)
    else:
        bound = bind_tcp(arguments.host, arguments.port)
    # What is loaded stays: scanning it while it grows would cost a tenth of the start, and scanning
    # it later would cost pauses. Modules leave little garbage and take the longest to scan; what
    # the weights leave may be large.
    gc.disable()
    try:
        from specengine.server.life import load_service, serve

        gc.freeze()
        service = load_service(arguments, system)
        gc.collect()
        gc.freeze()
    finally:
        gc.enable()
    return serve(service, arguments, bound)


def _check_folders(arguments: argparse.Namespace) -> None:
    folders = {"--target": arguments.target}
    if not arguments.autoregressive:
        folders["--drafter"] = arguments.drafter
    for option, folder in folders.items():
        if not folder.is_dir():
            raise CheckpointError(
                f"{folder} is not a folder", where=option, fix="name the folder of a checkpoint"
            )
    check_shards(arguments.target)


def _port(text: str) -> int:
    value = int(text)
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{value} is no port")
    return value
