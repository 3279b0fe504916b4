"""Whether target and drafter are here and can belong together, from their files, before a run.

The engine checks everything when it loads them; here only what JSON says, at once and without
loading a weight.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specpilot.core.deployment import Deployment
from specpilot.core.errors import SpecPilotError
from specpilot.core.record import read_json_object
from specpilot.engines.target_folder import model_folder

_NESTED = ("text_config", "transformer_layer_config")
"""Where multimodal targets and some published drafters keep the sizes of the text model."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model's folder and the size of its weights."""

    role: str
    folder: Path
    weight_bytes: int

    def spell(self) -> str:
        """For people."""
        return f"{self.folder}, {self.weight_bytes / 2**30:.2f} GiB of weights"


def require_models(deployment: Deployment) -> tuple[ModelFiles, ...]:
    """Target and drafter of a deployment; nothing where the engine is simulated.

    Raises:
        SpecPilotError: one is missing or without weights, or the drafter is of another target.
    """
    if deployment.engine.kind == "simulated":
        return ()
    found = tuple(
        _files(role, name)
        for role, name in (
            ("target", deployment.target.model),
            ("drafter", deployment.drafter.model),
        )
    )
    target, drafter = (_config(item.folder) for item in found)
    _require_fit(target, drafter, deployment.drafter.kind, found[1].folder)
    return found


def _files(role: str, name: str) -> ModelFiles:
    folder = model_folder(name)
    if not (folder / "config.json").is_file():
        raise SpecPilotError(
            "holds no config.json",
            where=f"{role} {folder}",
            fix="give the folder that holds config.json and the safetensors files",
        )
    weights = list(folder.glob("*.safetensors"))
    if not weights:
        raise SpecPilotError(
            "holds no weights", where=f"{role} {folder}", fix="give a folder with safetensors files"
        )
    return ModelFiles(role, folder, sum(path.stat().st_size for path in weights))


def _config(folder: Path) -> dict[str, Any]:
    """A model's configuration with the sizes of its text model at the top."""
    path = folder / "config.json"
    config = read_json_object(path, SpecPilotError, "restore the model folder")
    for name in _NESTED:
        nested = config.get(name)
        if isinstance(nested, dict):
            config = {**config, **nested}
    return config


def _require_fit(
    target: Mapping[str, Any], drafter: Mapping[str, Any], kind: str, folder: Path
) -> None:
    """Compare what both files state; what one leaves open is the engine's to check."""
    pairs = {
        "vocab_size": (drafter.get("vocab_size"), target.get("vocab_size")),
        "num_target_layers": (drafter.get("num_target_layers"), target.get("num_hidden_layers")),
        "target_hidden_size": (drafter.get("target_hidden_size"), target.get("hidden_size")),
    }
    if kind in ("dflash", "dflash2", "dspark"):
        pairs["hidden_size"] = (drafter.get("hidden_size"), target.get("hidden_size"))
    for name, (own, theirs) in pairs.items():
        if isinstance(own, int) and isinstance(theirs, int) and own != theirs:
            raise SpecPilotError(
                f"{name} is {own}, the target's is {theirs}",
                where=f"drafter {folder}",
                fix="use the drafter that was trained for this target",
            )
