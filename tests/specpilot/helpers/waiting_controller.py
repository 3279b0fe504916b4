"""A controller process whose agent starts a child and waits: something to kill in tests.

Arguments: the run folder, and a file that gets the child's process id.
"""

import asyncio
import dataclasses
import os
import sys
from pathlib import Path

from simulation import deployment_of, parts_of, write_deployment

from specpilot.controller.lifetime import end_with_parent
from specpilot.controller.main import main


class WaitingAgent:
    """Waits for a child that never ends."""

    name = "waiting"

    def __init__(self, note: Path) -> None:
        self._note = note
        self._child: asyncio.subprocess.Process | None = None

    async def start(self, brief, workspace, limits):
        self._child = await asyncio.create_subprocess_exec("sleep", "600")
        self._note.write_text(str(self._child.pid))
        await self._child.wait()
        yield

    async def stop(self) -> None:
        if self._child is not None and self._child.returncode is None:
            self._child.kill()
            await self._child.wait()


if __name__ == "__main__":
    end_with_parent(os.getppid())
    folder, note = Path(sys.argv[1]), Path(sys.argv[2])
    deployment = deployment_of()
    write_deployment(folder, deployment)
    parts = parts_of(deployment, {"wait": []})
    parts = dataclasses.replace(parts, make_agent=lambda *_: WaitingAgent(note))
    sys.exit(main(folder, parts))
