"""`specpilot serve --system stock`: whatever ends the server, its temporary folder goes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
import os, sys
from pathlib import Path
from specpilot.cli.serve import folder_of_this_process
folder = folder_of_this_process()
locked = folder / "export"
locked.mkdir()
(locked / "file").write_text("x")
locked.chmod(0o555)
print(folder, flush=True)
{end}
"""
ENDS = {
    "ends": "",
    "fails": "raise RuntimeError('on purpose')",
    "exits at once": "os._exit(3)",
    "becomes another program": "os.execv('/bin/sleep', ['sleep', '600'])",
}


def gone_in_time(folder: Path) -> bool:
    """Whether a folder goes in the end."""
    deadline = time.monotonic() + 120
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not folder.exists()


@pytest.mark.parametrize("end", list(ENDS))
def test_the_folder_goes_with_the_process(end: str, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(end=ENDS[end])],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    assert folder.parent == tmp_path
    if end == "becomes another program":
        assert (folder / "export" / "file").is_file()
        process.send_signal(signal.SIGKILL)
    process.wait(120)
    assert gone_in_time(folder)


def test_a_server_that_cannot_start_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "d.toml").write_text(
        'name = "s"\ntarget.model = "model"\ndrafter = { kind = "dflash2", model = "model" }\n',
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "specpilot.cli.main", "serve", "d.toml", "--system", "stock",
         "--port", "0"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "TMPDIR": str(tmp_path / "tmp")},
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "model" in done.stderr
    # Libraries keep folders of their own there.
    assert all(gone_in_time(path) for path in (tmp_path / "tmp").glob("specpilot-*"))
