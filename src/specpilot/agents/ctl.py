"""The client side of `specpilot ctl`: one JSON line to the controller, one JSON line back.

Request: `{"op": NAME, "arguments": {...}}`. Answer: `{"ok": true, "result": {...}}` or
`{"ok": false, "error": {"what", "where", "fix", "exit_code"}}`. A connection carries one request;
the answer may take as long as a paired run does.
"""

import json
import os
import socket
from pathlib import Path
from typing import Any

from specpilot.agents.base import SOCKET_VARIABLE
from specpilot.core.errors import ExitCode, Refused, SpecPilotError
from specpilot.core.record import canonical_json

MAX_LINE_BYTES = 16 << 20


class ControllerRefusal(SpecPilotError):
    """The controller answered an error; its exit code is kept."""

    def __init__(self, what: str, *, where: str, fix: str, exit_code: ExitCode) -> None:
        super().__init__(what, where=where, fix=fix)
        self.exit_code = exit_code


def socket_from_environment() -> Path:
    """The control socket of the direction this process works on.

    Raises:
        Refused: the process does not run inside a direction.
    """
    path = os.environ.get(SOCKET_VARIABLE)
    if not path:
        raise Refused(
            "is not set",
            where=SOCKET_VARIABLE,
            fix="run 'specpilot ctl' from an agent that the loop started",
        )
    return Path(path)


def call(path: Path, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Ask the controller and wait for its answer.

    Raises:
        SpecPilotError: the socket is gone or the answer is not one JSON line.
        ControllerRefusal: the controller answered an error.
    """
    line = canonical_json({"op": operation, "arguments": arguments}) + "\n"
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(path))
            connection.sendall(line.encode())
            raw = _read_line(connection)
    except OSError as error:
        raise SpecPilotError(
            f"controller not reachable ({error.strerror or error})",
            where=str(path),
            fix="check that the run is active with 'specpilot status'",
        ) from error
    return _result(raw, path)


def _read_line(connection: socket.socket) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := connection.recv(1 << 16):
        parts.append(part)
        size += len(part)
        if part.endswith(b"\n") or size > MAX_LINE_BYTES:
            break
    return b"".join(parts)


def _result(raw: bytes, path: Path) -> dict[str, Any]:
    try:
        answer = json.loads(raw)
        if answer["ok"]:
            return dict(answer["result"])
        error = answer["error"]
        refusal = ControllerRefusal(
            str(error["what"]),
            where=str(error["where"]),
            fix=str(error["fix"]),
            exit_code=ExitCode(error["exit_code"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise SpecPilotError(
            "the controller's answer is cut off or not JSON",
            where=str(path),
            fix="look at the controller's log in the run folder, then 'specpilot resume'",
        ) from error
    raise refusal
