"""Failures of building, loading and launching kernels."""

from specengine.errors import EngineError


class KernelError(EngineError):
    """A kernel cannot be compiled, loaded or launched here; `where` names the kernel or library."""
