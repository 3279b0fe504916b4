"""Ctrl-C while the command's modules load is one line, as it is later."""

import sys
from importlib.machinery import ModuleSpec

import pytest

from specpilot import cli
from specpilot.__main__ import main

COMMANDS = "specpilot.cli.main"


class _Interrupting:
    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name == COMMANDS:
            raise KeyboardInterrupt
        return None


def test_an_interrupt_while_modules_load_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, COMMANDS, raising=False)
    monkeypatch.delattr(cli, "main", raising=False)
    monkeypatch.setattr(sys, "meta_path", [_Interrupting(), *sys.meta_path])

    with pytest.raises(SystemExit) as ended:
        main()

    assert ended.value.code == 130
    assert capsys.readouterr().err == "interrupted\n"
