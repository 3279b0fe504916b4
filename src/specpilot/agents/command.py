"""Agents that are other people's programs: any command, and presets for two coding agents.

A command gets the brief as text in its last argument, as JSON at `SPECPILOT_BRIEF`, the worktree as
its working directory, and `specpilot ctl` as its only way to measure. A program's own sandbox is
switched off only where ours is around it; otherwise its own stays on.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import resources

from jinja2 import Environment, StrictUndefined

from specpilot.agents.base import AgentLimits, Brief, Workspace
from specpilot.agents.claude_stream import ClaudeStream
from specpilot.agents.codex_stream import CodexStream
from specpilot.agents.runner import SubprocessAgent
from specpilot.agents.streams import EventLines, StreamParser

CTL_COMMAND = f"{sys.executable} -P -m specpilot.cli.main ctl"


def render_brief(brief: Brief) -> str:
    """The brief as instructions for a language model."""
    source = resources.files("specpilot.agents").joinpath("briefs/direction.md")
    template = Environment(
        undefined=StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True
    ).from_string(source.read_text(encoding="utf-8"))
    return template.render(brief=brief, ctl=CTL_COMMAND)


def command_agent(command: Sequence[str]) -> SubprocessAgent:
    """Any program; what it prints is text, or our events as JSON lines."""

    def line(brief: Brief, workspace: Workspace, limits: AgentLimits) -> Sequence[str]:
        return (*command, render_brief(brief))

    return SubprocessAgent(f"command:{command[0]}", line, EventLines, costs_money=True)


def preset_agent(preset: str) -> SubprocessAgent:
    """A known coding agent: `claude` or `codex`."""
    line, parser = _PRESETS[preset]
    return SubprocessAgent(f"command:{preset}", line, parser, costs_money=True)


def claude_command(brief: Brief, workspace: Workspace, limits: AgentLimits) -> Sequence[str]:
    """Command line of Claude Code without a terminal."""
    confined = bool(workspace.prefix)
    permissions = (
        ("--dangerously-skip-permissions",)
        if confined
        else ("--permission-mode", "acceptEdits", "--allowedTools", f"Bash({CTL_COMMAND}:*)",
              "Bash(git:*)", "Edit", "Read", "Write")
    )  # fmt: skip
    money = () if limits.max_usd is None else ("--max-budget-usd", f"{limits.max_usd:.2f}")
    options = ("--output-format", "stream-json", "--verbose")
    return ("claude", "-p", *options, *permissions, *money, "--", render_brief(brief))


def codex_command(brief: Brief, workspace: Workspace, limits: AgentLimits) -> Sequence[str]:
    """Command line of Codex without a terminal."""
    confined = bool(workspace.prefix)
    sandbox = (
        ("--dangerously-bypass-approvals-and-sandbox",)
        if confined
        else ("--sandbox", "workspace-write")
    )
    return ("codex", "exec", "--json", *sandbox, "--", render_brief(brief))


_PRESETS: dict[
    str,
    tuple[
        Callable[[Brief, Workspace, AgentLimits], Sequence[str]],
        Callable[[], StreamParser],
    ],
] = {
    "claude": (claude_command, ClaudeStream),
    "codex": (codex_command, CodexStream),
}
