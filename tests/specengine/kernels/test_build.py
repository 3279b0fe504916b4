"""Machine code is made once and kept; failures say what to do."""

import ctypes

import pytest

from specengine.kernels import build, nvrtc
from specengine.kernels.errors import KernelError


@pytest.fixture
def compilations(monkeypatch, tmp_path):
    """A compiler that records what it is asked for, in front of an empty cache."""
    asked = []

    def compile_source(name, source, architecture, defines):
        asked.append((name, architecture, tuple(defines)))
        return source.encode() + architecture.encode()

    monkeypatch.setenv("SPECENGINE_CACHE", str(tmp_path / "kept"))
    monkeypatch.setattr(nvrtc, "compile_source", compile_source)
    monkeypatch.setattr(nvrtc, "version", lambda: (13, 0))
    return asked


def test_a_kernel_is_compiled_once(compilations):
    first = build.cubin("packed_decode", "sm_90a", ("ROWS=8",))
    assert build.cubin("packed_decode", "sm_90a", ("ROWS=8",)) == first
    assert compilations == [("packed_decode.cu", "sm_90a", ("ROWS=8",))]


def test_what_changes_the_code_changes_the_key(compilations, monkeypatch):
    build.cubin("packed_decode", "sm_90a", ("ROWS=8",))
    build.cubin("packed_decode", "sm_90a", ("ROWS=16",))
    build.cubin("packed_decode", "sm_80", ("ROWS=8",))
    monkeypatch.setattr(nvrtc, "version", lambda: (13, 1))
    build.cubin("packed_decode", "sm_90a", ("ROWS=8",))
    assert len(compilations) == 4


def test_an_interrupted_write_leaves_nothing(compilations, monkeypatch):
    def refuse(*_):
        raise KernelError("does not compile", where="packed_decode.cu", fix="report this")

    monkeypatch.setattr(nvrtc, "compile_source", refuse)
    with pytest.raises(KernelError):
        build.cubin("packed_decode", "sm_90a", ())
    assert not build.cache_folder().exists()


def test_sources_include_nothing():
    for name in ("packed_gemm", "packed_mma", "packed_decode", "head_judge", "head_settle"):
        assert "#include" not in build.source_text(name)


def test_a_missing_compiler_is_named(monkeypatch):
    def missing(_):
        raise OSError

    nvrtc.library.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", missing)
    try:
        with pytest.raises(KernelError, match="nvidia-cuda-nvrtc"):
            nvrtc.compile_source("kernel.cu", "", "sm_90a", ())
    finally:
        nvrtc.library.cache_clear()


@pytest.mark.skipif(nvrtc.library() is None, reason="needs NVIDIA's run-time compiler")
def test_the_compilers_complaint_reaches_the_user():
    with pytest.raises(KernelError, match='identifier "nonsense" is undefined'):
        nvrtc.compile_source("kernel.cu", "int x = nonsense;", "sm_90a", ())
