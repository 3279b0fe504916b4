"""Options of a system, as `system.toml` holds them. Every default reproduces stock.

An option that changes only speed belongs here; an option that changes tokens does not exist.
"""

import difflib
import tomllib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from specengine.errors import OptionError
from specengine.trees.registry import TREES

CHAINS = frozenset({"chain", "sampled_chain"})
"""Shapes that never branch, so that recurrent layers walk them as one path."""
DRAWN_OR_GROWN = ("sampled_chain", "own")
"""Drafts that no builder makes from a lattice."""
STEP_OPTIONS = frozenset(
    {
        "tree",
        "tree_file",
        "tree_temperature",
        "device_tree",
        "positions",
        "nodes",
        "confidence",
        "ngram",
    }
)
"""Options that the step reads anew; the others shape the layers when a model is loaded."""


class EngineOptions(BaseModel):
    """One decoding configuration."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )

    tree: str = "chain"
    """Shape of the verified draft: the greedy chain; a tree on the lattice, of which the best-first
    one is the paper's (section 4.2) and the others stand beside it for comparison (names in
    specengine/trees/registry.py); `sampled_chain`, drawn from the drafter and accepted by
    rejection (greedy requests get the greedy one); or `own`, the tree that an EAGLE-3 drafter
    grows on its own steps."""

    tree_temperature: float = Field(default=1.0, ge=0.1, le=10.0)
    """Temperature of the drafter's probabilities when a best-first tree is chosen; above 1 for a
    drafter that is too sure of itself. `specpilot replay` tries some."""

    tree_file: str = ""
    """Parameters of a `calibrated`, `sequoia` or `caddtree` tree, as `specpilot replay --fit`
    writes them; relative to the folder of this file."""

    device_tree: bool = False
    """Build best-first trees on the GPU, where the drafter's scores are, instead of on the host;
    the trees are the same. For best-first trees at temperature 1 of at most 64 nodes."""

    positions: int = Field(default=0, ge=0, le=64)
    """Drafted positions per step; 0 means the drafter's trained block."""

    nodes: int = Field(default=0, ge=0, le=256)
    """Verified rows per step, the root included; 0 means a chain's length (positions + 1)."""

    confidence: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Cut a DSpark draft before the first position whose estimated acceptance lies below this; 0
    never cuts."""

    ngram: int = Field(default=0, ge=0, le=64)
    """Rows of the draft that a chain looked up in the request's own tokens may take, below the best
    path; 0 looks nothing up. A `sampled_chain` that was drawn takes none: rejection needs the
    distribution that each token came from."""

    linear: Literal["plain", "prepacked", "w12", "w11s"] = "plain"
    """Layout of linear weights: as loaded; reordered once for the CPU's matrix units (target and
    drafter); or the target's in lossless 12-bit or 11-bit records for a Hopper GPU (paper section
    4.1). Same values, same products; only the summation order may differ."""

    fused_projections: bool = False
    """Run query/key/value and gate/up as one matrix product each (concatenated weights)."""

    cuda_graphs: bool = False
    """Replay verify passes as captured CUDA graphs (GPU only; a hybrid target needs a chain)."""

    @field_validator("tree")
    @classmethod
    def _known(cls, value: str) -> str:
        names = (*TREES, *DRAWN_OR_GROWN)
        if value not in names:
            close = difflib.get_close_matches(value, names, n=1)
            fix = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(names)}"
            raise ValueError(f"unknown tree '{value}'; {fix}")
        return value


def load_options(path: Path) -> EngineOptions:
    """Read `system.toml`.

    Raises:
        OptionError: unreadable file, unknown option, or a value of a wrong type or range.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(
            f"cannot be read ({error.strerror})", where=str(path), fix="check the path"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(
            f"is not valid TOML ({error})", where=str(path), fix="correct the line named"
        ) from error
    named = table.get("tree_file")
    if isinstance(named, str) and named:
        table["tree_file"] = str(path.parent / named)
    try:
        return EngineOptions.model_validate(table)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        close = difflib.get_close_matches(key, list(EngineOptions.model_fields), n=1)
        fix = f"did you mean '{close[0]}'?" if close else "see specengine.decoding.options"
        raise OptionError(f"option '{key}': {first['msg']}", where=str(path), fix=fix) from error
