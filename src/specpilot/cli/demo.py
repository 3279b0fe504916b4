"""`specpilot demo`: one whole round on a real small model, on the CPU, without a key."""

import os
from pathlib import Path
from typing import Annotated

import tomli_w
import typer

from specpilot.cli.follow import run_and_follow, write_run
from specpilot.cli.report import finish
from specpilot.core.deployment import BENCHMARKS
from specpilot.core.errors import ExitCode, SpecPilotError
from specpilot.core.measurement import Isolation

SIZES = {
    "full": {"development": 2, "sealed": 2, "max_new_tokens": 48, "sealed_max_new_tokens": 64},
    "quick": {"development": 1, "sealed": 1, "max_new_tokens": 24, "sealed_max_new_tokens": 32},
}
"""Requests per benchmark and output limits; the paper uses 40, 40, 2048 and 4096."""
DIRECTIONS = {"full": 4, "quick": 1}


def demo(
    run: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/demo"),
    quick: Annotated[bool, typer.Option("--quick", help="Fewer, shorter requests.")] = False,
    target: Annotated[Path, typer.Option(help="SmolLM2-135M-Instruct.")] = Path(
        "models/smollm2-135m-instruct"
    ),
    drafter: Annotated[Path, typer.Option(help="Its DFlash2 drafter.")] = Path(
        "assets/smollm2-135m-instruct-dflash2"
    ),
    isolation: Annotated[Isolation, typer.Option(help="Of servers and agents.")] = (
        Isolation.NAMESPACES
    ),
    json: Annotated[bool, typer.Option("--json", help="Print journal lines as JSON.")] = False,
) -> None:
    """Run phases 0 to 4 on SmolLM2-135M with its trained drafter, on two cores."""
    for folder, how in ((target, "run 'make model'"), (drafter, "run from the repository root")):
        if not (folder / "config.json").is_file():
            raise SpecPilotError("is not a model folder", where=str(folder), fix=how)
    size = "quick" if quick else "full"
    write_run(_fresh(run), tomli_w.dumps(_deployment(size, target, drafter, isolation)))
    code = run_and_follow(run, as_json=json)
    # A quick round has too few tokens for a promotion to be likely; it still ran whole.
    settled = quick and code is ExitCode.NOTHING_PROMOTED
    finish(run, ExitCode.OK if settled else code, as_json=json)


def _deployment(
    size: str, target: Path, drafter: Path, isolation: Isolation
) -> dict[str, dict[str, object] | str]:
    return {
        "name": "demo",
        "target": {"model": str(target.absolute()), "dtype": _dtype()},
        "drafter": {"kind": "dflash2", "model": str(drafter.absolute())},
        "engine": {"kind": "embedded", "threads": min(2, len(os.sched_getaffinity(0)))},
        "platform": {"devices": ["cpu"], "isolation": isolation.value},
        "workload": {"benchmarks": dict.fromkeys(BENCHMARKS, "builtin"), **SIZES[size]},
        "agent": {"kind": "playbook", "max_directions": DIRECTIONS[size]},
    }


def _dtype() -> str:
    """BF16 where the CPU multiplies it in hardware; FP32 elsewhere."""
    flags = Path("/proc/cpuinfo")
    known = flags.read_text(encoding="utf-8") if flags.exists() else ""
    return "bfloat16" if "amx_bf16" in known or "avx512_bf16" in known else "float32"


def _fresh(run: Path) -> Path:
    """Keep an earlier demo's folder beside the new one."""
    if (run / "journal.jsonl").exists():
        number = 1
        while (kept := run.with_name(f"{run.name}-{number}")).exists():
            number += 1
        run.rename(kept)
    return run
