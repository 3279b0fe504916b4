"""The stock system of the embedded engine: its installed source and every option, written out."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from specpilot.core.errors import DeploymentError, SpecPilotError
from specpilot.core.system import OptionValue

PACKAGE = "specengine"
TREE_FILE = f"{PACKAGE}/fitted_tree.json"
"""Where the tree holds the file that the option `tree_file` names: a system is complete, and its
server sees nothing else."""
DESCRIBE = """
import json, sys
from pydantic import ValidationError
from specengine.decoding.options import DRAWN_OR_GROWN, EngineOptions
from specengine.errors import EngineError
from specengine.trees import make_builder
try:
    chosen = EngineOptions.model_validate(json.loads(sys.argv[1])).model_dump()
    if chosen["tree"] not in DRAWN_OR_GROWN:
        heat = chosen["tree_temperature"]
        make_builder(chosen["tree"], file=chosen["tree_file"], temperature=heat)
except EngineError as error:
    sys.exit(str(error))
except ValidationError as error:
    first = error.errors()[0]
    sys.exit(f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
chosen["tree_file"] = sys.argv[2] if chosen["tree_file"] else ""
described = {name: field.description or name for name, field in EngineOptions.model_fields.items()}
print(json.dumps([[name, value, described[name]] for name, value in chosen.items()]))
"""
"""Run in a process of its own: the judge does not import what it judges."""


def read_stock_tree(options: Mapping[str, OptionValue]) -> dict[str, bytes]:
    """Relative POSIX path -> bytes of the engine's package and `system.toml`.

    Args:
        options: stock's settings where they differ from the engine's defaults; a `tree_file`
            becomes part of the tree.

    Raises:
        DeploymentError: an option that the engine does not have, or a value of a wrong type.
        SpecPilotError: the engine is not installed.
    """
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise SpecPilotError(
            "is not installed", where=PACKAGE, fix="install the distribution again"
        )
    package = Path(spec.origin).parent
    files = {
        f"{PACKAGE}/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }
    named = options.get("tree_file")
    if isinstance(named, str) and named:
        options = {**options, "tree_file": str(Path(named).resolve())}
    files["system.toml"] = _options_file(package.parent, options).encode()
    if named:
        # Its description read it already, so that a missing one is the engine's own message.
        files[TREE_FILE] = Path(str(named)).read_bytes()
    return files


def _options_file(root: Path, options: Mapping[str, OptionValue]) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-c", DESCRIBE, json.dumps(dict(options)), TREE_FILE],
        cwd=root,
        env={"PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
    )
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise DeploymentError(
            f"not accepted by the engine ({lines[-1] if lines else 'no reason given'})",
            where="engine.options",
            fix="see specengine.decoding.options for names, types and ranges",
        )
    # Blank lines and a comment between any two options, so that changes of two of them never
    # touch neighbouring lines.
    blocks = [
        f"# {' '.join(description.split())}\n{name} = {json.dumps(value)}\n"
        for name, value, description in json.loads(done.stdout)
    ]
    return "\n\n".join(blocks)
