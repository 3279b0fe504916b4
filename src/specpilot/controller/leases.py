"""One holder per device at a time, first come first served; every lease is journaled."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from specpilot.loop.events import Event, LeaseReleased, LeaseTaken


class Leases:
    """Queues of one host's devices."""

    def __init__(self, devices: Sequence[str], emit: Callable[[Event], None]) -> None:
        self.devices = tuple(devices)
        self._emit = emit
        self._queues = {device: asyncio.Lock() for device in devices}
        self._wanted: Counter[str] = Counter()

    def pick(self, count: int) -> tuple[str, ...]:
        """The `count` devices with the shortest queues, in the deployment's order."""
        shortest = sorted(self.devices, key=lambda device: self._wanted[device])[:count]
        return tuple(device for device in self.devices if device in shortest)

    @asynccontextmanager
    async def hold(self, devices: Sequence[str], holder: str, purpose: str) -> AsyncIterator[None]:
        """Wait for all of `devices`; one fixed order, so that no two waiters block each other."""
        self._wanted.update(devices)
        try:
            async with AsyncExitStack() as stack:
                for device in sorted(devices):
                    await stack.enter_async_context(self._one(device, holder, purpose))
                yield
        finally:
            self._wanted.subtract(devices)

    @asynccontextmanager
    async def _one(self, device: str, holder: str, purpose: str) -> AsyncIterator[None]:
        async with self._queues[device]:
            started = time.monotonic()
            self._emit(LeaseTaken(device=device, holder=holder, purpose=purpose))
            try:
                yield
            finally:
                seconds = time.monotonic() - started
                self._emit(LeaseReleased(device=device, holder=holder, seconds=seconds))
