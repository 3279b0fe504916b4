"""The seeded split into development and sealed requests, and why nothing later can change it.

Which rows go where depends on a secret of the run, the seed, the benchmark's name and the row's own
text alone, so that adding, removing or reordering other rows moves no request from one side to the
other by accident of position, and nobody who knows rows and seed can tell the sealed ones. The
hashes of both sides are journaled when the split is made; every later load must give the same
hashes.
"""

import hmac
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from specpilot.core.errors import DamagedRun, Refused, WorkloadError
from specpilot.core.record import content_hash
from specpilot.core.requests import Request
from specpilot.workload.benchmarks import Prompt
from specpilot.workload.private_files import write_once

_REQUESTS = TypeAdapter(dict[str, tuple[Request, ...]])


@dataclass(frozen=True, slots=True)
class Split:
    """What agents may see, and what only the sealed final plays."""

    development: tuple[Request, ...]
    sealed: tuple[Request, ...]

    @property
    def development_hash(self) -> str:
        """Content hash of the development side."""
        return requests_hash(self.development)

    @property
    def sealed_hash(self) -> str:
        """Content hash of the sealed side; says nothing about its texts."""
        return requests_hash(self.sealed)

    def verify(self, development_hash: str, sealed_hash: str) -> "Split":
        """This split, if it is the journaled one.

        Raises:
            DamagedRun: either side differs.
        """
        for side, found, journaled in (
            ("development", self.development_hash, development_hash),
            ("sealed", self.sealed_hash, sealed_hash),
        ):
            if found != journaled:
                raise DamagedRun(
                    f"the {side} requests are not those that the run was split into",
                    where="workload",
                    fix="restore the request files, the target's tokenizer and the seed, "
                    "or start a new run",
                )
        return self


def requests_hash(requests: Sequence[Request]) -> str:
    """Content hash of requests in their order."""
    return content_hash([request.to_json() for request in requests])


def counts(requests: Sequence[Request]) -> dict[str, int]:
    """Requests per benchmark."""
    return dict(Counter(request.benchmark for request in requests))


def choose(
    prompts: Sequence[Prompt], development: int, sealed: int, seed: int, secret: str
) -> tuple[list[Prompt], list[Prompt]]:
    """Development and sealed prompts of one benchmark: disjoint, in an order from seed and secret.

    Raises:
        WorkloadError: too few prompts.
    """
    if len(prompts) < development + sealed:
        name = prompts[0].benchmark if prompts else "a benchmark"
        raise WorkloadError(
            f"{name} has {len(prompts)} different prompts; {development} development and "
            f"{sealed} sealed were asked for",
            where="workload",
            fix="lower workload.development or workload.sealed, or give a larger file",
        )
    order = sorted(prompts, key=lambda prompt: _rank(prompt, seed, secret))
    return order[:development], order[development : development + sealed]


def _rank(prompt: Prompt, seed: int, secret: str) -> bytes:
    known = f"{seed}\0{prompt.benchmark}\0{prompt.text}"
    return hmac.digest(secret.encode(), known.encode(), "sha256")


def store_split(split: Split, path: Path) -> None:
    """Write the split once, readable by this user alone; an equal file that is there is kept.

    Raises:
        Refused: a file with another content is there.
    """
    content = json.dumps(
        {
            "development": [request.to_json() for request in split.development],
            "sealed": [request.to_json() for request in split.sealed],
        }
    ).encode()
    if not write_once(path, content) and load_split(path) != split:
        raise Refused("holds another split already", where=str(path), fix="start a new run")


def load_split(path: Path) -> Split:
    """Read a stored split; compare it with the journaled hashes by `Split.verify`.

    Raises:
        DamagedRun: missing or malformed.
    """
    try:
        sides = _REQUESTS.validate_json(path.read_bytes())
        return Split(development=sides["development"], sealed=sides["sealed"])
    except (OSError, ValidationError, KeyError) as error:
        raise DamagedRun(
            f"the stored requests cannot be read ({type(error).__name__})",
            where=str(path),
            fix="restore the file, or start a new run",
        ) from error
