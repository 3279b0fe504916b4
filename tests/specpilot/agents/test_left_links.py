"""What an agent leaves in its folder leads its next start to no other file."""

import asyncio
import os
from pathlib import Path

from specpilot.agents.process import LineProcess


def test_a_log_that_became_a_link_is_not_written_through(tmp_path: Path) -> None:
    journal, log = tmp_path / "journal.jsonl", tmp_path / "agent.log"
    journal.write_text("kept", encoding="utf-8")
    log.symlink_to(journal)

    async def play() -> None:
        command = ["sh", "-c", "echo said >&2"]
        environment = {"PATH": os.environ["PATH"]}
        process = await LineProcess.launch(
            command, folder=tmp_path, environment=environment, log=log
        )
        assert await process.exit_status(30) == 0
        await process.end(1)

    asyncio.run(play())

    assert journal.read_text(encoding="utf-8") == "kept"
    assert log.read_text(encoding="utf-8") == "said\n"
