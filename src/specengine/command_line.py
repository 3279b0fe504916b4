"""What the engine's command lines share: mistakes raise, numbers have a least value."""

import argparse
from collections.abc import Callable
from typing import NoReturn

from specengine.errors import OptionError


class Parser(argparse.ArgumentParser):
    """Raises instead of printing its usage, so that every bad start ends with one line."""

    def error(self, message: str) -> NoReturn:
        """Raise what the parser found wrong."""
        raise OptionError(message, where="command line", fix="see --help")


def whole(least: int) -> Callable[[str], int]:
    """Reads a whole number from `least` to what 63 bits hold."""

    def read(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is below {least}")
        if value >= 2**63:
            raise argparse.ArgumentTypeError(f"{value} is not below 2**63")
        return value

    read.__name__ = "whole number"
    return read
