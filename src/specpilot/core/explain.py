"""What is wrong with a table that a user wrote, as one line: key, value, and what is allowed.

The allowed values are read from the record's own JSON schema, so that they cannot disagree with
what is checked. Types are strict: text is no number, a truth value is no number, 12.0 is no whole
number.
"""

import difflib
import json
import math
from typing import Any, TypeVar

from pydantic import ValidationError

from specpilot.core.errors import DeploymentError
from specpilot.core.record import Record

MAX_DEPTH = 6
"""Tables and lists inside each other; no key needs as many."""
MAX_SHOWN = 60
"""Characters of a value that a message repeats."""

Checked = TypeVar("Checked", bound=Record)


def check_table(record: type[Checked], table: dict[str, Any], *, where: str, fix: str) -> Checked:
    """The record that a table of TOML values describes.

    Args:
        where: names the table's source in errors.
        fix: where a user finds what is allowed.

    Raises:
        DeploymentError: an unknown key, or a value of a wrong type or outside its range.
    """
    _check_plain(table, (), where, fix)
    try:
        # As JSON, because strict Python values would have to be tuples and enumeration members.
        return record.model_validate_json(json.dumps(table), strict=True)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False)
        # A misspelt key is reported as unknown and as missing: the first says more.
        unknown = [fault for fault in faults if fault["type"] == "extra_forbidden"]
        first = (unknown or faults)[0]
        path = tuple(str(part) for part in first["loc"])
        schema = record.model_json_schema()
        if unknown:
            raise DeploymentError(
                f"unknown key '{_shown_key(path)}'", where=where, fix=_nearest(schema, path)
            ) from error
        raise DeploymentError(_fault(schema, path, first), where=where, fix=fix) from error


def _check_plain(value: object, path: tuple[str, ...], where: str, fix: str) -> None:
    """Refuse what JSON or a path cannot carry, and nesting that no key asks for."""
    problem = ""
    if len(path) > MAX_DEPTH:
        problem = f"is nested more than {MAX_DEPTH} deep"
    elif isinstance(value, dict | list):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            if "\0" in str(key):
                _check_plain(key, path, where, fix)
            _check_plain(item, (*path, str(key)), where, fix)
    elif isinstance(value, float) and not math.isfinite(value):
        problem = f"= {value}: must be a finite number"
    elif isinstance(value, str) and "\0" in value:
        problem = f"= {_shown(value)}: no path, name or argument holds a null character"
    elif not isinstance(value, str | bool | int | float):
        problem = f"= {value}: a date or time is not allowed anywhere"
    if problem:
        raise DeploymentError(f"key '{_shown_key(path)}' {problem}", where=where, fix=fix)


def _fault(schema: dict[str, Any], path: tuple[str, ...], fault: Any) -> str:
    name = f"key '{_shown_key(path)}'"
    if fault["type"] == "missing":
        return f"{name} is missing: give {allowed(schema, _lookup(schema, path))}"
    if fault["type"] == "value_error":
        message = fault["msg"].removeprefix("Value error, ")
    else:
        message = f"must be {allowed(schema, _lookup(schema, path))}"
    return f"{name} = {_shown(fault['input'])}: {message}"


def allowed(schema: dict[str, Any], part: dict[str, Any]) -> str:
    """The values that a part of a JSON schema admits, in words."""
    part = _resolve(schema, part)
    if "anyOf" in part:
        options = [option for option in part["anyOf"] if option.get("type") != "null"]
        return " or ".join(dict.fromkeys(allowed(schema, option) for option in options))
    if "enum" in part or "const" in part:
        values = part.get("enum", [part.get("const")])
        return " or ".join(f"'{value}'" for value in values)
    kind = part.get("type")
    if kind in ("integer", "number"):
        return ("a whole number" if kind == "integer" else "a number") + _range(part)
    if kind == "array":
        return f"a list, each entry {allowed(schema, part['items'])}"
    if kind == "object":
        return f"a table of {', '.join(part['properties'])}" if "properties" in part else "a table"
    if kind == "boolean":
        return "true or false"
    # Only where text has a form does the field say which in its description.
    return str(part["description"]) if "pattern" in part else "text in quotes, not empty"


def _range(part: dict[str, Any]) -> str:
    above, low, high = (part.get(k) for k in ("exclusiveMinimum", "minimum", "maximum"))
    start = (
        f" above {above:g}" if above is not None else f" from {low:g}" if low is not None else ""
    )
    return start if high is None else f"{start} to {high:,.0f}"


def _resolve(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in part:
        found = schema["$defs"][part["$ref"].rpartition("/")[2]]
        part = {**found, **{key: value for key, value in part.items() if key != "$ref"}}
    return part


def _lookup(schema: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """The part of the schema that a path of keys leads to, as far as it goes."""
    part = schema
    for step in path:
        part = _resolve(schema, part)
        if step in part.get("properties", {}):
            part = part["properties"][step]
        elif part.get("type") == "array" and step.isdigit():
            part = part["items"]
        elif isinstance(part.get("additionalProperties"), dict):
            part = part["additionalProperties"]
    return _resolve(schema, part)


def _nearest(schema: dict[str, Any], path: tuple[str, ...]) -> str:
    valid = list(_lookup(schema, path[:-1])["properties"])
    close = difflib.get_close_matches(path[-1], valid, n=1, cutoff=0.5)
    return f"did you mean '{close[0]}'?" if close else f"valid keys are {', '.join(valid)}"


def _shown_key(path: tuple[str, ...]) -> str:
    return _cut(".".join(part if part.isprintable() else ascii(part)[1:-1] for part in path))


def _shown(value: object) -> str:
    return _cut(json.dumps(value, ensure_ascii=False))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
