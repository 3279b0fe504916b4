"""Whose failure it was: the candidate's, or one of the servers that it is held against."""

from collections.abc import Iterator
from contextlib import contextmanager

from specpilot.core.errors import EngineFailure, SpecPilotError


class InfrastructureFailure(SpecPilotError):
    """A server that is not under test failed: a baseline, AR, stock, or the scorer.

    No `EngineFailure`, so that nothing takes it for a verdict on a candidate.
    """


@contextmanager
def attributed(trusted: bool) -> Iterator[None]:
    """Say of failures inside whether they are a candidate's.

    Args:
        trusted: the server that is asked inside is not under test.

    Raises:
        InfrastructureFailure: a trusted server failed.
        EngineFailure: a candidate failed.
    """
    try:
        yield
    except EngineFailure as failure:
        if not trusted:
            raise
        raise InfrastructureFailure(
            failure.what, where=failure.where, fix=f"{failure.fix}, then 'specpilot resume'"
        ) from failure
