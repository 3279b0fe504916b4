"""`python -m specengine.weights encode|verify|inspect`: one JSON object per line of output.

Lines are `{"event": "tensor", ...}` as work goes on, one `{"event": "result", ...}` at the end, or
`{"event": "error", "message": ...}`. The exit code is 0; 1 after an error or a found fault; 130 or
143 after SIGINT or SIGTERM. Torch is imported when tensors are read: what is refused before, and
`inspect`, take no second of start.
"""

import argparse
import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from specengine.errors import EngineError
from specengine.shards import check_shards
from specengine.weights.inspect_folder import inspect_folder
from specengine.weights.manifest import read_manifest

if TYPE_CHECKING:
    from specengine.weights.encode_folder import Progress

SIGNALS = (signal.SIGINT, signal.SIGTERM)
MOST_THREADS = 6
"""Unless asked for: more wait for the interpreter and for the one thread that hashes, and each
takes memory for the pieces that it works on, up to 0.15 GB where rows are longest."""


class _Stopped(BaseException):
    """A signal asks for the end; no part of the work may take it for its own failure."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def main(arguments: list[str] | None = None) -> int:
    """Run one command."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except BrokenPipeError:
        # The reader of our lines left; nothing more can be said to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(options: argparse.Namespace) -> int:
    for number in SIGNALS:
        signal.signal(number, _stop)
    event, fields, code = _outcome(options)
    _tell(event, fields)
    return code


def _outcome(options: argparse.Namespace) -> tuple[str, dict[str, object], int]:
    """The last line's event and fields, and the exit code."""
    try:
        result = options.run(options)
        _stop_no_more()
    except EngineError as error:
        return "error", {"message": str(error)}, 1
    except BrokenPipeError:
        raise
    except OSError as error:
        message = f"{error.filename or 'disk'}: {error.strerror}; check the path"
        return "error", {"message": message}, 1
    except MemoryError:
        message = "memory is full; use fewer --threads, then repeat the command"
        return "error", {"message": message}, 1
    except _Stopped as stopped:
        return "error", {"message": f"interrupted; {options.after}"}, 128 + stopped.number
    finally:
        _stop_no_more()
    return "result", result, 1 if result.get("faults") else 0


def _stop(number: int, frame: FrameType | None) -> None:
    """Unwind once; more signals must not cut the unwinding short."""
    _stop_no_more()
    raise _Stopped(number)


def _stop_no_more() -> None:
    """From here on the last line is said and the process ends, whatever comes."""
    for one in SIGNALS:
        # Python complains of a signal that has arrived already and is set to be ignored.
        signal.signal(one, _take_no_notice)


def _take_no_notice(number: int, frame: FrameType | None) -> None:
    pass


def _encode(options: argparse.Namespace) -> dict[str, object]:
    # A mistyped folder is answered before torch is imported.
    check_shards(options.source)
    from specengine.weights.encode_folder import encode_folder

    _one_thread_each()
    encode_folder(
        options.source,
        options.destination,
        options.format,
        threads=options.threads,
        report=_progress,
    )
    # It is complete: the same command would not go on, as an interrupt promises.
    _stop_no_more()
    return inspect_folder(options.destination)


def _verify(options: argparse.Namespace) -> dict[str, object]:
    read_manifest(options.folder)
    from specengine.weights.verify_folder import verify_folder

    _one_thread_each()
    faults = verify_folder(options.folder, threads=options.threads, report=_progress)
    return {"folder": str(options.folder), "faults": [asdict(fault) for fault in faults]}


def _inspect(options: argparse.Namespace) -> dict[str, object]:
    return inspect_folder(options.folder)


def _one_thread_each() -> None:
    """Pieces run side by side on threads of their own; torch must not split each of them again."""
    import torch

    torch.set_num_threads(1)


def _progress(progress: "Progress") -> None:
    _tell("tensor", asdict(progress))


def _tell(event: str, fields: dict[str, object]) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields}, allow_nan=False) + "\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m specengine.weights")
    commands = parser.add_subparsers(required=True)
    cores = len(os.sched_getaffinity(0))

    encode = commands.add_parser("encode", help="encode a checkpoint folder")
    encode.set_defaults(run=_encode, after="the same command continues")
    encode.add_argument("source", type=Path, help="checkpoint folder")
    encode.add_argument("destination", type=Path, help="folder to write")
    encode.add_argument("--format", default="w12", help="w12, w12n or w11s")

    verify = commands.add_parser("verify", help="check every byte of an encoded folder")
    verify.set_defaults(run=_verify, after="nothing was verified")
    verify.add_argument("folder", type=Path, help="encoded folder")

    inspect = commands.add_parser("inspect", help="bits per weight of each tensor, and why")
    inspect.set_defaults(run=_inspect, after="nothing was changed")
    inspect.add_argument("folder", type=Path, help="encoded folder")
    # Threads that read, hash and write keep a core busy beside those that code.
    for command in (encode, verify):
        command.add_argument(
            "--threads",
            type=int,
            default=min(MOST_THREADS, max(1, cores - 1)),
            help="that work on pieces",
        )
    return parser


if __name__ == "__main__":
    sys.exit(main())
