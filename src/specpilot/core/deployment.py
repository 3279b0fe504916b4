"""The deployment file: what is served, on what, under which load, and what may be spent.

Strict: an unknown key is an error that names the file, the key and the nearest valid key.
"""

import difflib
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator

from specpilot.core.errors import DeploymentError
from specpilot.core.measurement import Isolation
from specpilot.core.numbers import NonNegative, Positive, PositiveInt
from specpilot.core.record import Record
from specpilot.core.system import OptionValue

BENCHMARKS = ("gsm8k", "math500", "humaneval", "mbpp", "mt_bench")
"""The paper's five benchmarks."""


class Target(Record):
    """The model that decides every token."""

    model: str
    """Folder, or hub id."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"


class Drafter(Record):
    """The model that proposes tokens."""

    kind: Literal["dflash2"]
    model: str
    """Folder, or hub id."""


class Engine(Record):
    """Which engine serves."""

    kind: Literal["embedded", "simulated"] = "embedded"
    options: dict[str, OptionValue] = Field(default_factory=dict)
    """Stock's options where they differ from the engine's defaults: stock is tuned once, here."""
    threads: PositiveInt | None = None
    """CPU threads of one server; all cores of its lease when absent."""


class Regime(Record):
    """The load."""

    concurrency: tuple[PositiveInt, ...] = (1,)
    """Requests in flight; one entry per batch size."""


class Platform(Record):
    """The hardware that the controller may lease, and how far servers are kept apart."""

    devices: tuple[str, ...] = ("cpu",)
    """`cpu` or `cuda:N`; two of one host are swapped in paired runs, one alternates A B B A."""
    isolation: Isolation = Isolation.NAMESPACES

    @field_validator("devices")
    @classmethod
    def _known_devices(cls, devices: tuple[str, ...]) -> tuple[str, ...]:
        for device in devices:
            if device != "cpu" and not device.removeprefix("cuda:").isdigit():
                raise ValueError(f"device {device!r} is neither 'cpu' nor 'cuda:N'")
        if not devices or len(set(devices)) != len(devices):
            raise ValueError("devices must name at least one device, each once")
        return devices


class Workload(Record):
    """Requests and their seeded split into development and sealed."""

    benchmarks: tuple[str, ...] | dict[str, str] = BENCHMARKS
    """Names read from the hub, or name -> local JSONL file."""
    development: PositiveInt = 40
    """Requests per benchmark that agents may see."""
    sealed: PositiveInt = 40
    """Requests per benchmark that only the sealed final sees."""
    max_new_tokens: PositiveInt = 2048
    sealed_max_new_tokens: PositiveInt = 4096
    seed: int = 0


class AgentChoice(Record):
    """Who explores directions."""

    kind: Literal["playbook", "scripted", "command"] = "playbook"
    preset: Literal["claude", "codex"] | None = None
    """With `command`: a known program."""
    command: tuple[str, ...] = ()
    """With `command` and no preset: the program and its arguments."""
    script: str | None = None
    """With `scripted`: the TOML file of fixed edits."""
    max_directions: PositiveInt = 4
    deadline_seconds: Positive = 3600.0

    @model_validator(mode="after")
    def _complete(self) -> "AgentChoice":
        if self.kind == "command" and (self.preset is None) == (not self.command):
            raise ValueError("agent kind 'command' needs exactly one of 'preset' and 'command'")
        if self.kind == "scripted" and self.script is None:
            raise ValueError("agent kind 'scripted' needs 'script'")
        return self


class Budget(Record):
    """Hard limits; 0 means nothing may be spent."""

    max_rounds: PositiveInt = 1
    max_gpu_hours: NonNegative | None = None
    max_usd: NonNegative | None = None
    max_attempts_per_direction: PositiveInt = 3


class Deployment(Record):
    """One deployment, as its user wrote it."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    target: Target
    drafter: Drafter
    engine: Engine = Engine()
    regime: Regime = Regime()
    platform: Platform = Platform()
    workload: Workload = Workload()
    agent: AgentChoice = AgentChoice()
    budget: Budget = Budget()


def load_deployment(path: Path) -> Deployment:
    """Read and check a deployment file.

    Raises:
        DeploymentError: unreadable file, bad TOML, unknown key, or a value of a wrong type.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DeploymentError(
            f"cannot be read ({error.strerror})", where=str(path), fix="check the path"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DeploymentError(
            f"is not valid TOML ({error})", where=str(path), fix="correct the line named"
        ) from error
    return parse_deployment(table, where=str(path))


def parse_deployment(table: dict[str, Any], *, where: str) -> Deployment:
    """Check a parsed table; `where` names its source in errors."""
    try:
        return Deployment.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise DeploymentError(
                f"unknown key '{key}'", where=where, fix=_nearest_key(first["loc"])
            ) from error
        message = first["msg"].removeprefix("Value error, ")
        raise DeploymentError(
            f"key '{key}': {message}" if key else message,
            where=where,
            fix="see the deployment reference in docs/deployment.md",
        ) from error


def _nearest_key(loc: tuple[int | str, ...]) -> str:
    model: type[BaseModel] = Deployment
    for part in loc[:-1]:
        annotation = model.model_fields[str(part)].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            model = annotation
    valid = list(model.model_fields)
    close = difflib.get_close_matches(str(loc[-1]), valid, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"valid keys are {', '.join(valid)}"
