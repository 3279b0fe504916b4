"""A system: a source tree with options, held as a commit of the run's repository."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from specpilot.core.record import Record

CommitId = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
TreeHash = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
OptionValue = bool | int | float | str


class System(Record):
    """What the judge can start: identified by its tree, so equal code is one system."""

    commit: CommitId
    tree_hash: TreeHash
    options: dict[str, OptionValue]
    """Contents of `system.toml`; opaque to the judge, checked by the engine."""


class Checkout(Record):
    """A system exported to a folder that nothing may write to."""

    system: System
    path: Path
    autoregressive: bool = False
    """Start the same engine without its drafter: the AR arm."""
