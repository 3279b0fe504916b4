"""Agents: whoever explores a direction, behind one protocol (paper section 3.2).

An agent is a process in a git worktree. What it prints is a note; facts come only from the
controller's records, which it obtains through `specpilot ctl`.
"""
