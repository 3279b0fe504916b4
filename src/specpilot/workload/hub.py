"""The five benchmarks from the Hugging Face hub, as JSON Lines or Parquet, whichever it has.

Reading Parquet needs pyarrow (`pip install specpilot[hub]`), which nothing else here does.
"""

from pathlib import Path
from typing import Any

from specpilot.core.errors import WorkloadError

HUB_DATASETS = {
    "gsm8k": "openai/gsm8k",
    "math500": "HuggingFaceH4/MATH-500",
    "humaneval": "openai/openai_humaneval",
    "mbpp": "google-research-datasets/mbpp",
    "mt_bench": "HuggingFaceH4/mt_bench_prompts",
}
_LINES = (".jsonl", ".jsonl.gz")
_PARQUET = ".parquet"


def fetch(benchmark: str) -> tuple[Path, str]:
    """A local copy of a benchmark's file, and its name on the hub.

    Raises:
        WorkloadError: unknown name, no readable file there, or the hub cannot be reached.
    """
    if benchmark not in HUB_DATASETS:
        raise WorkloadError(
            f"{benchmark!r} is not a benchmark that the hub is known to have",
            where="workload.benchmarks",
            fix=f'give its file, as in {{ {benchmark} = "requests.jsonl" }}',
        )
    dataset = HUB_DATASETS[benchmark]
    advice = (
        f'download it as JSON Lines and give the file: {{ {benchmark} = "{benchmark}.jsonl" }}; '
        f'or play the few prompts that ship, benchmarks = {{ {benchmark} = "builtin" }}, with '
        "development + sealed at most 12"
    )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    patterns = [f"*{ending}" for ending in (*_LINES, _PARQUET)]
    try:
        folder = Path(snapshot_download(dataset, repo_type="dataset", allow_patterns=patterns))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise WorkloadError(
            f"the hub does not give it ({reason})", where=dataset, fix=advice
        ) from error
    files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    chosen = choose_file(files)
    if chosen is None:
        raise WorkloadError(
            "the hub has no JSON Lines or Parquet file of it", where=dataset, fix=advice
        )
    return folder / chosen, f"{dataset}/{chosen}"


def choose_file(names: list[str]) -> str | None:
    """The test questions among a data set's files: tests first, JSON Lines before Parquet.

    Of several configurations the alphabetically first is the whole set (gsm8k's `main`, mbpp's
    `full`).
    """
    readable = sorted(name for name in names if name.endswith((*_LINES, _PARQUET)))
    ranked = sorted(
        readable,
        key=lambda name: (
            not ("test" in Path(name).name or "question" in Path(name).name),
            name.endswith(_PARQUET),
        ),
    )
    return next(iter(ranked), None)


def read_parquet(path: Path) -> list[dict[str, Any]]:
    """Rows of a Parquet file.

    Raises:
        WorkloadError: pyarrow is missing, or the file is not Parquet.
    """
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise WorkloadError(
            "is Parquet, which needs pyarrow",
            where=str(path),
            fix="pip install 'specpilot[hub]', or give the benchmark as a JSON Lines file",
        ) from error
    try:
        rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    except (ArrowException, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise WorkloadError(
            f"cannot be read as Parquet ({reason})", where=str(path), fix="download it again"
        ) from error
    return rows
