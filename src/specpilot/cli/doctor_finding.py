"""What one check of `specpilot doctor` found."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was tried; `fix` says what to do when it failed."""

    name: str
    holds: bool
    detail: str
    fix: str = ""
