"""What the judge reads of a model's folder by itself: stop tokens, vocabulary, limits, hashes."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from specpilot.core.errors import SpecPilotError
from specpilot.core.record import file_hash, read_json_object

_FIX = "restore the model folder"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the judge knows of the target from its folder, and holds answers against.

    Attributes:
        size: token ids lie in [0, size).
        stop_ids: ids that end an output.
    """

    size: int
    stop_ids: frozenset[int]


def model_folder(model: str) -> Path:
    """The folder of a model given by path or hub id.

    Raises:
        SpecPilotError: neither a folder nor a model that the hub gives.
    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder.absolute()
    if model.startswith(("/", ".", "~")) or model.count("/") > 1:
        raise SpecPilotError(
            "is no folder", where=model, fix="give the model's folder, or its id on the hub"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model)).absolute()
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise SpecPilotError(
            f"is neither a folder nor a model that the hub gives ({reason})",
            where=model,
            fix="give the model's folder in the deployment",
        ) from error


def read_vocabulary(folder: Path) -> Vocabulary:
    """Vocabulary size and stop tokens, from the configuration files.

    Raises:
        SpecPilotError: missing or malformed configuration.
    """
    config = read_json_object(folder / "config.json", SpecPilotError, _FIX)
    text = config.get("text_config", config)
    size = text.get("vocab_size", config.get("vocab_size"))
    if not isinstance(size, int) or size < 1:
        raise SpecPilotError(
            "holds no vocab_size", where=str(folder / "config.json"), fix="restore the model folder"
        )
    values = [config.get("eos_token_id", text.get("eos_token_id"))]
    generation = folder / "generation_config.json"
    if generation.is_file():
        values.append(read_json_object(generation, SpecPilotError, _FIX).get("eos_token_id"))
    stops: set[int] = set()
    for value in values:
        stops.update(value if isinstance(value, list) else [] if value is None else [value])
    return Vocabulary(size=size, stop_ids=frozenset(stops))


class FolderHashes:
    """Hashes of folders; a file is read again only when its inode, size or times changed."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int, int, int], str] = {}

    def model(self, folder: Path) -> str:
        """SHA-256 over names and contents of every file."""
        return self._combined(folder, sorted(path for path in folder.rglob("*") if path.is_file()))

    def tokenizer(self, folder: Path) -> str:
        """SHA-256 over the files that decide what a prompt's token ids are."""
        paths = (folder / name for name in TOKENIZER_FILES)
        return self._combined(folder, [path for path in paths if path.is_file()])

    def _combined(self, folder: Path, paths: list[Path]) -> str:
        combined = hashlib.sha256()
        for path in paths:
            combined.update(f"{path.relative_to(folder)}\0{self._file(path)}\n".encode())
        return combined.hexdigest()

    def _file(self, path: Path) -> str:
        stat = path.stat()
        key = (str(path), stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
        if key not in self._known:
            self._known[key] = file_hash(path)
        return self._known[key]
