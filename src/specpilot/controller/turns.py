"""Servers that share a device take turns: while one plays, the others' processes are stopped.

A server that computes in its rival's turn makes the rival look slow, and itself fast. Changing
turns costs a reading of /proc or two; a server that keeps its turn costs nothing.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from specpilot.controller.attribution import attributed
from specpilot.engines.base import RunningEngine


class Turns:
    """Named servers of one device. From `begin` on at most one of them is awake."""

    def __init__(self, servers: Mapping[str, RunningEngine], trusted: frozenset[str]) -> None:
        self._servers = servers
        self._trusted = trusted
        self._awake = set(servers)

    async def begin(self) -> None:
        """Freeze all of them, so that whoever's turn comes first meets the same quiet device."""
        for name in self._servers:
            await self._freeze(name)

    @asynccontextmanager
    async def of(self, name: str) -> AsyncIterator[RunningEngine]:
        """The turn of one server; it stays awake until another one's turn comes.

        Raises:
            EngineFailure: it failed, or another candidate cannot be frozen.
            InfrastructureFailure: the same of a server that is not under test.
        """
        for other in self._awake - {name}:
            await self._freeze(other)
        with attributed(name in self._trusted):
            if name not in self._awake:
                await self._servers[name].thaw()
                self._awake.add(name)
            yield self._servers[name]

    async def end(self, name: str) -> None:
        """Stop one server for good."""
        with attributed(name in self._trusted):
            await self._servers[name].stop()
        self._awake.discard(name)

    async def _freeze(self, name: str) -> None:
        with attributed(name in self._trusted):
            await self._servers[name].freeze()
        self._awake.discard(name)
