"""One program as an agent: deadlines, money, stop, and exactly one final event."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

from specpilot.agents.base import (
    BRIEF_VARIABLE,
    SOCKET_VARIABLE,
    AgentLimits,
    Brief,
    Workspace,
)
from specpilot.agents.events import (
    AgentErrorCode,
    AgentEvent,
    CostEvent,
    ErrorEvent,
    TextEvent,
    is_terminal,
)
from specpilot.agents.process import LineProcess, LineTooLong
from specpilot.agents.streams import StreamParser

STARTS = 2
"""A program that prints nothing at its start is started once more."""

CommandLine = Callable[[Brief, Workspace, AgentLimits], Sequence[str]]


class SubprocessAgent:
    """An agent that is a program reading a brief and printing a stream."""

    def __init__(
        self,
        name: str,
        command: CommandLine,
        parser: Callable[[], StreamParser],
        *,
        costs_money: bool,
    ) -> None:
        """Args:
        name: shown in the journal.
        command: builds the program's command line.
        parser: makes a fresh parser for one run of the program.
        costs_money: whether an unstated cost counts at the limit.
        """
        self.name = name
        self._command = command
        self._parser = parser
        self._costs_money = costs_money
        self._stopping = asyncio.Event()

    async def stop(self) -> None:
        """End the program; the stream closes with code `stopped`."""
        self._stopping.set()

    async def start(
        self, brief: Brief, workspace: Workspace, limits: AgentLimits
    ) -> AsyncIterator[AgentEvent]:
        """See `specpilot.agents.base.Agent`."""
        command = list(self._command(brief, workspace, limits))
        if shutil.which(command[0], path=workspace.environment.get("PATH")) is None:
            yield _error(
                AgentErrorCode.PROGRAM_MISSING,
                f"{command[0]}: not found on the agent's PATH; install it, or choose another "
                "agent in the deployment's [agent] table",
            )
            return
        launched = _Launch(command, _with_brief(brief, workspace), limits)
        final: AgentEvent | None = None
        cost_stated = False
        for number in range(1, STARTS + 1):
            async for event in self._once(launched):
                cost_stated |= isinstance(event, CostEvent)
                if is_terminal(event):
                    final = event
                else:
                    yield event
            if not _silent(final) or number == STARTS:
                break
            yield TextEvent(text="printed nothing in time; the program is started once more")
        assert final is not None
        if self._costs_money and not cost_stated and limits.max_usd is not None:
            yield CostEvent(total_usd=limits.max_usd)
        yield final

    async def _once(self, launched: "_Launch") -> AsyncIterator[AgentEvent]:
        """One start of the program, up to its final event; nothing of it is left afterwards."""
        process = await launched.process()
        try:
            async for event in self._read(process, launched.limits):
                yield event
                if is_terminal(event):
                    return
        finally:
            await process.end(launched.limits.grace_seconds)

    async def _read(self, process: LineProcess, limits: AgentLimits) -> AsyncIterator[AgentEvent]:
        clock = asyncio.get_running_loop().time
        started, parser, heard = clock(), self._parser(), False
        while True:
            until = started + (limits.deadline_seconds if heard else limits.first_event_seconds)
            until = min(until, started + limits.deadline_seconds)
            line = await self._line_or_error(process, until - clock(), heard=heard)
            if isinstance(line, ErrorEvent):
                yield line
                return
            if line is None:
                status = await process.exit_status(limits.grace_seconds)
                yield parser.finish(status)
                return
            for event in parser.feed(line):
                heard = True
                if is_terminal(event):
                    await process.exit_status(limits.grace_seconds)
                    yield event
                    return
                yield event
                if _too_expensive(event, limits):
                    yield _error(AgentErrorCode.MAX_USD, f"spent its limit of {limits.max_usd} USD")
                    return

    async def _line_or_error(
        self, process: LineProcess, seconds: float, *, heard: bool
    ) -> str | ErrorEvent | None:
        reading = asyncio.ensure_future(process.read_line(seconds))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({reading, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if self._stopping.is_set():
                return _error(AgentErrorCode.STOPPED, "stopped by the loop")
            return reading.result()
        except TimeoutError:
            if heard:
                return _error(AgentErrorCode.DEADLINE, "its time is over")
            return _error(AgentErrorCode.FIRST_EVENT_DEADLINE, "printed no event in time")
        except LineTooLong:
            return _error(AgentErrorCode.MALFORMED_STREAM, "printed a line of more than 16 MiB")
        finally:
            for task in (reading, stopping):
                task.cancel()
            await asyncio.gather(reading, stopping, return_exceptions=True)


class _Launch:
    """What does not change between the starts of one program."""

    def __init__(self, command: list[str], workspace: Workspace, limits: AgentLimits) -> None:
        self.limits = limits
        self._command = command
        self._workspace = workspace

    async def process(self) -> LineProcess:
        space = self._workspace
        return await LineProcess.launch(
            [*space.prefix, *self._command],
            folder=space.worktree,
            environment=space.environment,
            log=space.state / "agent.log",
        )


def _with_brief(brief: Brief, workspace: Workspace) -> Workspace:
    path = workspace.state / "brief.json"
    # An earlier start of an agent that was not confined may have left a link.
    path.unlink(missing_ok=True)
    path.write_text(brief.model_dump_json(indent=1) + "\n", encoding="utf-8")
    # The agent may have an account of its own.
    path.chmod(0o644)
    environment = {
        **workspace.environment,
        SOCKET_VARIABLE: str(workspace.socket),
        BRIEF_VARIABLE: str(path),
    }
    return replace(workspace, environment=environment)


def _silent(event: AgentEvent | None) -> bool:
    return isinstance(event, ErrorEvent) and event.code is AgentErrorCode.FIRST_EVENT_DEADLINE


def _too_expensive(event: AgentEvent, limits: AgentLimits) -> bool:
    return (
        isinstance(event, CostEvent)
        and limits.max_usd is not None
        and event.total_usd > limits.max_usd
    )


def _error(code: AgentErrorCode, message: str) -> ErrorEvent:
    return ErrorEvent(code=code, message=message)
