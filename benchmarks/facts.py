"""What every result file says of where it comes from."""

import json
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).resolve().parent / "results"


def origin() -> dict[str, str]:
    """Date, processor, versions and command."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "cpu": _processor(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
    }


def write(name: str, result: dict[str, Any]) -> None:
    """Write `benchmarks/results/<name>.json`."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(origin() | result, indent=2) + "\n", encoding="utf-8")
    print(f"\nwritten to {path.relative_to(RESULTS.parents[1])}")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
