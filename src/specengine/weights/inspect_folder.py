"""What each tensor of an encoded folder costs, and why."""

from pathlib import Path

from specengine.weights.manifest import Manifest, StoredTensor, read_manifest


def inspect_folder(folder: Path) -> dict[str, object]:
    """Facts of all tensors and of the folder as a whole, for JSON.

    `bits_per_weight` of the folder counts packed tensors alone.

    Raises:
        CheckpointError: the manifest is missing or damaged.
    """
    manifest = read_manifest(folder)
    packed = [tensor for tensor in manifest.tensors.values() if tensor.format != "plain"]
    weights = sum(_weights(tensor) for tensor in packed)
    stored = sum(tensor.nbytes for tensor in packed)
    return {
        "folder": str(folder),
        "format": manifest.format,
        "tensors": [_row(name, tensor) for name, tensor in manifest.tensors.items()],
        "packed_weights": weights,
        "packed_bits_per_weight": 8 * stored / weights if weights else None,
        "original_bytes": _original_bytes(manifest),
        "stored_bytes": sum(tensor.nbytes for tensor in manifest.tensors.values()),
    }


def _row(name: str, tensor: StoredTensor) -> dict[str, object]:
    weights = _weights(tensor)
    return {
        "name": name,
        "shape": tensor.shape,
        "format": tensor.format,
        "bits_per_weight": 8 * tensor.nbytes / weights if weights else None,
        "why": _why(tensor),
        "facts": tensor.facts,
    }


def _why(tensor: StoredTensor) -> str:
    """One line: the parts of the cost, largest first, and what escaped."""
    facts = tensor.facts
    if tensor.format == "plain":
        return f"as it was: {facts['reason']}"
    costs = {key: facts[key] for key in ("lists", "escapes", "index", "padding")}
    shown = sorted(costs.items(), key=lambda item: -float(str(item[1])))
    parts = [f"{facts['in_place']:.0f} in place"]
    parts += [f"{value:.3f} {key}" for key, value in shown if float(str(value)) >= 0.0005]
    escaped = facts["escaped"]
    assert isinstance(escaped, dict)
    causes = [f"{count} {cause}" for cause, count in escaped.items() if count]
    line = " + ".join(parts)
    if causes:
        line += f"; escaped: {', '.join(causes)}"
    if facts["channels_of_zeros"]:
        line += f"; {facts['channels_of_zeros']} channels of zeros"
    return line


def _weights(tensor: StoredTensor) -> int:
    count = 1
    for size in tensor.shape:
        count *= size
    return count


def _original_bytes(manifest: Manifest) -> int:
    total = 0
    for tensor in manifest.tensors.values():
        if tensor.format == "plain":
            data = tensor.arrays["data"]
            total += data.end - data.begin
        else:
            total += 2 * _weights(tensor)
    return total
