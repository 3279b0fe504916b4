"""The deployment file: what is served, on what, under which load, and what may be spent.

Strict: an unknown key is an error that names the file, the key and the nearest valid key; a value
of a wrong type or outside its range names the value and what is allowed.
"""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from specpilot.core.errors import DeploymentError
from specpilot.core.explain import check_table
from specpilot.core.measurement import Isolation
from specpilot.core.record import Record
from specpilot.core.system import OptionValue

BENCHMARKS = ("gsm8k", "math500", "humaneval", "mbpp", "mt_bench")
"""The paper's five benchmarks."""
REFERENCE = "docs/deployment.md"

Text = Annotated[str, Field(min_length=1)]
Amount = Annotated[int, Field(ge=1, le=1_000_000_000)]
OutputLimit = Annotated[int, Field(ge=2, le=1_000_000_000)]
"""The first token comes out of the prompt's pass; speculation begins with the second."""
Parallel = Annotated[int, Field(ge=1, le=4096)]
Limit = Annotated[float, Field(ge=0, le=1_000_000_000, allow_inf_nan=False)]
_DEVICE = re.compile(r"cpu|cuda:(0|[1-9][0-9]{0,2})", re.ASCII)


class Target(Record):
    """The model that decides every token."""

    model: Text
    """Folder, or hub id."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"


class Drafter(Record):
    """The model that proposes tokens."""

    kind: Literal["dflash2", "dflash", "dspark", "eagle3", "auto"]
    """What the folder holds; `auto` takes whatever it holds."""
    model: Text
    """Folder, or hub id."""


class Engine(Record):
    """Which engine serves."""

    kind: Literal["embedded", "simulated"] = "embedded"
    options: dict[str, OptionValue] = Field(default_factory=dict)
    """Stock's options where they differ from the engine's defaults: stock is tuned once, here."""
    threads: Parallel | None = None
    """CPU threads of one server; all cores of its lease when absent."""

    @field_validator("options", mode="before")
    @classmethod
    def _scalar_options(cls, options: object) -> object:
        if isinstance(options, dict):
            scalar = bool | int | float | str
            wrong = [name for name, value in options.items() if not isinstance(value, scalar)]
            if wrong:
                raise ValueError(f"'{wrong[0]}' must be text, a number, true or false")
        return options


class Regime(Record):
    """The load."""

    concurrency: tuple[Parallel, ...] = (1,)
    """Requests in flight; one entry per batch size."""

    @field_validator("concurrency")
    @classmethod
    def _levels(cls, concurrency: tuple[int, ...]) -> tuple[int, ...]:
        _check_once(concurrency)
        return concurrency


class Platform(Record):
    """The hardware that the controller may lease, and how far servers are kept apart."""

    devices: tuple[str, ...] = ("cpu",)
    """`cpu` or `cuda:N`; two of one host are swapped in paired runs, one alternates A B B A."""
    isolation: Isolation = Isolation.NAMESPACES

    @field_validator("devices")
    @classmethod
    def _known_devices(cls, devices: tuple[str, ...]) -> tuple[str, ...]:
        for device in devices:
            if _DEVICE.fullmatch(device) is None:
                raise ValueError(f"{device!r} must be 'cpu' or 'cuda:N', such as 'cuda:0'")
        _check_once(devices)
        if "cpu" in devices and len(devices) > 1:
            raise ValueError("must be 'cpu' alone, or GPUs alone")
        return devices


class Workload(Record):
    """Requests and their seeded split into development and sealed."""

    benchmarks: tuple[str, ...] | dict[str, str] = BENCHMARKS
    """Names read from the hub, or name -> local JSONL file."""
    development: Amount = 40
    """Requests per benchmark that agents may see."""
    sealed: Amount = 40
    """Requests per benchmark that only the sealed final sees."""
    max_new_tokens: OutputLimit = 2048
    sealed_max_new_tokens: OutputLimit = 4096
    passes: Annotated[int, Field(ge=1, le=2)] = 2
    """How often an arm of a paired run plays each development request, on fresh servers each time:
    with one, more requests cost what a second pass would."""
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0

    @field_validator("benchmarks", mode="before")
    @classmethod
    def _named_benchmarks(cls, benchmarks: object) -> object:
        """Says in one message what a union would say in two contradicting ones."""
        names = list(benchmarks) if isinstance(benchmarks, dict | list | tuple) else [None]
        files = list(benchmarks.values()) if isinstance(benchmarks, dict) else []
        if not all(isinstance(text, str) and text for text in [*names, *files]):
            raise ValueError(
                'must be a list of names, such as ["gsm8k"], or a table of name = file, such as '
                '{ gsm8k = "gsm8k.jsonl" }'
            )
        _check_once(names)
        return benchmarks if isinstance(benchmarks, dict) else tuple(names)


class AgentChoice(Record):
    """Who explores directions."""

    kind: Literal["playbook", "scripted", "command"] = "playbook"
    preset: Literal["claude", "codex"] | None = None
    """With `command`: a known program."""
    command: tuple[Text, ...] = ()
    """With `command` and no preset: the program and its arguments."""
    script: Text | None = None
    """With `scripted`: the TOML file of fixed edits."""
    max_directions: Parallel = 4
    deadline_seconds: Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)] = 3600.0

    @model_validator(mode="after")
    def _complete(self) -> "AgentChoice":
        if self.kind == "command" and (self.preset is None) == (not self.command):
            raise ValueError("agent kind 'command' needs exactly one of 'preset' and 'command'")
        if self.kind == "scripted" and self.script is None:
            raise ValueError("agent kind 'scripted' needs 'script'")
        if self.kind != "command" and (self.preset is not None or self.command):
            raise ValueError(f"agent kind '{self.kind}' takes neither 'preset' nor 'command'")
        if self.kind != "scripted" and self.script is not None:
            raise ValueError(f"agent kind '{self.kind}' takes no 'script'")
        return self


class Budget(Record):
    """Hard limits; 0 means nothing may be spent."""

    max_rounds: Amount = 1
    max_gpu_hours: Limit | None = None
    max_usd: Limit | None = None
    max_attempts_per_direction: Amount = 3


class Deployment(Record):
    """One deployment, as its user wrote it."""

    name: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
            max_length=100,
            description="up to 100 letters, digits, '.', '_' and '-', a letter or digit first",
        ),
    ]
    target: Target
    drafter: Drafter
    engine: Engine = Engine()
    regime: Regime = Regime()
    platform: Platform = Platform()
    workload: Workload = Workload()
    agent: AgentChoice = AgentChoice()
    budget: Budget = Budget()

    @model_validator(mode="after")
    def _swapped(self) -> "Deployment":
        if self.workload.passes < 2 <= len(self.platform.devices):
            raise ValueError("workload passes must be 2 where two devices are swapped")
        return self

    @model_validator(mode="after")
    def _reached(self) -> "Deployment":
        """With fewer requests than are to be in flight, the load would never be played."""
        fewer = min(self.workload.development, self.workload.sealed)
        requests = fewer * len(self.workload.benchmarks)
        most = max(self.regime.concurrency)
        if most > requests:
            raise ValueError(
                f"regime concurrency {most} is never reached: only {requests} requests are played"
            )
        return self


def load_deployment(path: Path) -> Deployment:
    """Read and check a deployment file.

    Raises:
        DeploymentError: unreadable file, bad TOML, unknown key, or a value of a wrong type.
    """
    if path.exists() and not path.is_file():
        raise DeploymentError("is no file", where=str(path), fix="give a deployment file")
    try:
        # Some editors begin a file with a byte order mark, which nobody sees.
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise DeploymentError(
            f"cannot be read ({error.strerror})", where=str(path), fix="check the path"
        ) from error
    except RecursionError as error:
        raise DeploymentError(
            "is nested too deeply", where=str(path), fix=f"write what {REFERENCE} lists"
        ) from error
    except ValueError as error:
        # The parser's own errors, text that is no UTF-8, and numbers of thousands of digits; these
        # last name a Python function behind the reason.
        reason = str(error).partition(";")[0]
        raise DeploymentError(
            f"is not valid TOML ({reason})", where=str(path), fix="correct the line named"
        ) from error
    return parse_deployment(table, where=str(path))


def parse_deployment(table: dict[str, Any], *, where: str) -> Deployment:
    """Check a parsed table; `where` names its source in errors."""
    return check_table(Deployment, table, where=where, fix=f"see {REFERENCE}")


def _check_once(values: Sequence[object]) -> None:
    if not values or len(set(values)) != len(values):
        raise ValueError("must name at least one, each once")
