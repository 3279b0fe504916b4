"""The environment of confined processes: nothing is inherited but facts about the hardware."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

HARDWARE_VARIABLES = (
    "OPENBLAS_CORETYPE",
    "OPENBLAS_L2_SIZE",
    "ONEDNN_MAX_CPU_ISA",
    "LD_LIBRARY_PATH",
)
"""Passed on where set: without them libraries may pick code that this machine cannot run."""


def base_environment(home: Path, temporary: Path) -> dict[str, str]:
    """Private home, temporary folder and caches; the interpreter's folder on the path.

    Args:
        home: home folder, as seen by the process; caches lie under it.
        temporary: folder for temporary files, as seen by the process.
    """
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "XDG_CACHE_HOME": str(home / "cache"),
        "XDG_CONFIG_HOME": str(home / "config"),
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    return environment | _present(os.environ)


def server_environment(
    home: Path, temporary: Path, checkout: Path, threads: int | None
) -> dict[str, str]:
    """Environment of a server under test: its package from the checkout, no hub, fixed threads."""
    caches = {
        "HF_HOME": "huggingface",
        "TRITON_CACHE_DIR": "triton",
        "TORCHINDUCTOR_CACHE_DIR": "inductor",
        "TORCH_EXTENSIONS_DIR": "torch_extensions",
        "FLASHINFER_WORKSPACE_BASE": "flashinfer",
        "CUDA_CACHE_PATH": "cuda",
    }
    environment = base_environment(home, temporary)
    environment |= {name: str(home / "cache" / folder) for name, folder in caches.items()}
    environment |= {
        "PYTHONPATH": str(checkout),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if threads is not None:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            environment[name] = str(threads)
    return environment


def _present(source: Mapping[str, str]) -> dict[str, str]:
    return {name: source[name] for name in HARDWARE_VARIABLES if name in source}
