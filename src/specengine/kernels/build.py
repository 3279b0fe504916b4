"""Sources of this package, and their machine code in a folder that outlives the process.

A kernel is compiled once for each compiler version, architecture and set of definitions. The
folder is `$SPECENGINE_CACHE`, else `$XDG_CACHE_HOME/specengine`, else `~/.cache/specengine`. A file
appears there by an atomic rename, so processes may compile the same kernel at once.
"""

import hashlib
import os
import tempfile
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from specengine.kernels import nvrtc

SHARED_HEADERS = ("hopper.cuh", "formats.cuh")
OWN_HEADERS = {
    "packed_gemm": ("packed_ring.cuh",),
    "head_judge": ("bounds.cuh",),
    "head_settle": ("bounds.cuh",),
}


def source_text(name: str) -> str:
    """`name`.cu with the device functions that it uses in front: one text that includes nothing."""
    folder = resources.files("specengine.kernels")
    return "\n".join(
        folder.joinpath(file).read_text(encoding="utf-8")
        for file in (*SHARED_HEADERS, *OWN_HEADERS.get(name, ()), f"{name}.cu")
    )


def cache_folder() -> Path:
    chosen = os.environ.get("SPECENGINE_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "specengine"


def cubin(name: str, architecture: str, defines: Sequence[str]) -> bytes:
    """Machine code of kernel file `name`, from the cache or from the compiler.

    Raises:
        KernelError: see `nvrtc.compile_source`.
    """
    source = source_text(name)
    key = "\n".join([source, architecture, *defines, str(nvrtc.version())])
    digest = hashlib.sha256(key.encode()).hexdigest()
    kept = cache_folder() / "cubins" / f"{name}-{architecture}-{digest[:32]}.cubin"
    if kept.is_file():
        return kept.read_bytes()
    code = nvrtc.compile_source(f"{name}.cu", source, architecture, defines)
    kept.parent.mkdir(parents=True, exist_ok=True)
    descriptor, partial = tempfile.mkstemp(dir=kept.parent, suffix=".part")
    with os.fdopen(descriptor, "wb") as file:
        file.write(code)
    Path(partial).replace(kept)
    return code
