"""Parameters of fitted trees as JSON: one object that names its tree and holds its fields.

A file belongs to one target and drafter. It is read whole and checked before a request is served;
a wrong one is refused in one line.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from specengine.errors import OptionError
from specengine.trees.base import TreeBuilder

FIX = "write it anew with `specpilot replay --fit`"


class Parametrised(Protocol):
    """A builder that a file can hold."""

    def parameters(self) -> dict[str, Any]:
        """Its fields as JSON values; `from_parameters` of its class takes them back."""
        ...


def parameter_text(tree: str, builder: Parametrised) -> str:
    """The file's text; numbers keep six digits, more than any fit knows of them."""
    return json.dumps({"tree": tree, **_rounded(builder.parameters())}, allow_nan=False) + "\n"


def read_parameters(
    path: Path, tree: str, read: Callable[[Mapping[str, Any]], TreeBuilder]
) -> TreeBuilder:
    """The builder that a file holds.

    Raises:
        OptionError: unreadable, not such a file, of another tree, or with fields that are missing,
            unknown or of wrong values.
    """
    where = f"parameters {path}"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(
            f"cannot be read ({error.strerror})", where=where, fix="check option 'tree_file'"
        ) from error
    except (ValueError, RecursionError) as error:
        raise OptionError(f"are not JSON ({error})", where=where, fix=FIX) from error
    named = found.get("tree") if isinstance(found, dict) else None
    if named != tree:
        raise OptionError(f"are of tree {named!r}, the option is '{tree}'", where=where, fix=FIX)
    del found["tree"]
    try:
        return read(found)
    except OptionError as error:
        raise OptionError(error.what, where=f"{where}, {error.where}", fix=FIX) from error
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        reason = f"no field {error}" if isinstance(error, KeyError) else str(error)
        raise OptionError(f"do not fit a {tree} tree ({reason})", where=where, fix=FIX) from error


def only(fields: Mapping[str, Any], *names: str) -> tuple[Any, ...]:
    """The values of all fields of a file, in the order of their names.

    Raises:
        KeyError: one is missing.
        ValueError: there are others.
    """
    unknown = sorted(set(fields) - set(names))
    if unknown:
        raise ValueError(f"unknown field '{unknown[0]}', known: {', '.join(names)}")
    return tuple(fields[name] for name in names)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value
