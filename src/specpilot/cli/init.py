"""`specpilot init`: a first deployment file from what is on the machine."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from specpilot.cli.load import threads_beside_the_judge
from specpilot.cli.output import print_json, say
from specpilot.cli.runs import write_deployment
from specpilot.core.deployment import Deployment, load_deployment, parse_deployment
from specpilot.core.errors import Refused


def command(
    target: Annotated[str, typer.Argument(help="target model: folder or hub id")],
    drafter: Annotated[str, typer.Argument(help="drafter: folder or hub id")],
    out: Annotated[Path, typer.Option(help="file to write")] = Path("deployment.toml"),
    name: Annotated[str | None, typer.Option(help="name of the runs")] = None,
    agent: Annotated[
        Literal["playbook", "claude", "codex"],
        typer.Option(help="who explores: the built-in playbook, or a language model's program"),
    ] = "playbook",
    as_json: Annotated[bool, typer.Option("--json", help="the deployment as JSON")] = False,
) -> None:
    """Write a deployment for the GPUs of this machine, or for its CPU when there is none."""
    from specpilot.sandbox.probe import probe

    if out.exists():
        raise Refused("exists already", where=str(out), fix="choose another --out")
    devices = find_devices()
    on_gpu = devices != ["cpu"]
    choice = {"kind": "playbook"} if agent == "playbook" else {"kind": "command", "preset": agent}
    deployment = parse_deployment(
        {
            "name": name or Path(target).name.lower(),
            "target": {"model": target},
            "drafter": {"kind": "auto", "model": drafter},
            "engine": {} if on_gpu else {"threads": threads_beside_the_judge()},
            "platform": {"devices": devices, "isolation": probe().strongest.value},
            # A CPU decodes about a tenth of a GPU's tokens: fewer and shorter requests.
            "workload": {} if on_gpu else {
                "development": 8, "sealed": 8,
                "max_new_tokens": 256, "sealed_max_new_tokens": 512,
            },
            "agent": choice,
            "budget": {"max_rounds": 3, "max_gpu_hours": 20.0} if on_gpu else {"max_rounds": 1},
        },
        where="init",
    )  # fmt: skip
    write_deployment(deployment, out)
    if as_json:
        print_json(load_deployment(out).to_json())
        return
    for role, model in (("target", target), ("drafter", drafter)):
        if not Path(model).expanduser().exists():
            say(f"note: {role} '{model}' is no folder here, so it is taken for a hub id", err=True)
    say(
        f"wrote {out}: {_spell_cores(deployment)}, isolation {deployment.platform.isolation}; "
        f"next: specpilot plan {out}"
    )


def _spell_cores(deployment: Deployment) -> str:
    """What is measured on."""
    threads = deployment.engine.threads
    devices = f"devices {', '.join(deployment.platform.devices)}"
    if threads is None:
        return devices
    left = len(os.sched_getaffinity(0)) - threads
    judge = f", {left} core left to the judge" if left else ""
    return f"{devices}, engine.threads = {threads}{judge}"


def find_devices() -> list[str]:
    """Up to two GPUs of this host (paired runs swap two), or the CPU."""
    import pynvml

    try:
        pynvml.nvmlInit()
        count = int(pynvml.nvmlDeviceGetCount())
    except pynvml.NVMLError:
        return ["cpu"]
    return [f"cuda:{index}" for index in range(min(count, 2))] or ["cpu"]
