"""`python -m specengine.weights encode|verify|inspect`: one JSON object per line of output.

Lines are `{"event": "tensor", ...}` as work goes on, one `{"event": "result", ...}` at the end, or
`{"event": "error", "message": ...}`. The exit code is 0, or 1 after an error or a found fault.
"""

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from specengine.errors import EngineError
from specengine.weights.encode_folder import Progress, encode_folder
from specengine.weights.inspect_folder import inspect_folder
from specengine.weights.registry import FORMATS
from specengine.weights.verify_folder import verify_folder

INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """Run one command."""
    options = _parser().parse_args(arguments)
    # Pieces run side by side on threads of their own; torch must not split each of them again.
    torch.set_num_threads(1)
    try:
        result = options.run(options)
    except EngineError as error:
        _tell("error", {"message": str(error)})
        return 1
    except OSError as error:
        _tell("error", {"message": f"{error.filename or 'disk'}: {error.strerror}; check the path"})
        return 1
    except KeyboardInterrupt:
        _tell("error", {"message": "interrupted; the same command continues an encoding"})
        return INTERRUPTED
    _tell("result", result)
    return 1 if result.get("faults") else 0


def _encode(options: argparse.Namespace) -> dict[str, object]:
    encode_folder(
        options.source,
        options.destination,
        options.format,
        threads=options.threads,
        report=_progress,
    )
    return inspect_folder(options.destination)


def _verify(options: argparse.Namespace) -> dict[str, object]:
    faults = verify_folder(options.folder, threads=options.threads, report=_progress)
    return {"folder": str(options.folder), "faults": [asdict(fault) for fault in faults]}


def _inspect(options: argparse.Namespace) -> dict[str, object]:
    return inspect_folder(options.folder)


def _progress(progress: Progress) -> None:
    _tell("tensor", asdict(progress))


def _tell(event: str, fields: dict[str, object]) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields}, allow_nan=False) + "\n")
    sys.stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m specengine.weights")
    commands = parser.add_subparsers(required=True)
    threads = len(os.sched_getaffinity(0))

    encode = commands.add_parser("encode", help="encode a checkpoint folder")
    encode.set_defaults(run=_encode)
    encode.add_argument("source", type=Path)
    encode.add_argument("destination", type=Path)
    encode.add_argument("--format", default="w12", help=", ".join(FORMATS))

    verify = commands.add_parser("verify", help="check every byte of an encoded folder")
    verify.set_defaults(run=_verify)
    verify.add_argument("folder", type=Path)

    inspect = commands.add_parser("inspect", help="bits per weight of each tensor, and why")
    inspect.set_defaults(run=_inspect)
    inspect.add_argument("folder", type=Path)
    for command in (encode, verify):
        command.add_argument("--threads", type=int, default=threads)
    return parser


if __name__ == "__main__":
    sys.exit(main())
