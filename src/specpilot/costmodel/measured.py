"""The cost model of a real deployment: shapes from its folders, peaks of its device."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from specpilot.core.deployment import Deployment
from specpilot.core.errors import DeploymentError, WorkloadError
from specpilot.core.record import read_json_object
from specpilot.costmodel.ceiling import ceiling_facts
from specpilot.costmodel.floors import StepWork, floor_seconds
from specpilot.costmodel.hardware import Peaks, cpu_peaks, gpu_peaks
from specpilot.costmodel.shapes import FOLDER_FIX, drafter_parameters, target_shape
from specpilot.engines.target_folder import model_folder
from specpilot.loop.facts import CeilingFacts
from specpilot.loop.run import CeilingInputs


def ceiling_of(deployment: Deployment) -> Callable[[CeilingInputs], CeilingFacts]:
    """A function from measured inputs to the ceiling's factors, for this deployment."""
    target = model_folder(deployment.target.model)
    drafter = model_folder(deployment.drafter.model)

    def compute(inputs: CeilingInputs) -> CeilingFacts:
        shape = target_shape(target, deployment.target.dtype)
        return ceiling_facts(
            recordings=inputs.recordings,
            profiles=inputs.profiles,
            tau=inputs.tau,
            autoregressive_seconds=inputs.autoregressive_seconds,
            step_seconds=inputs.step_seconds,
            floors=floor_seconds(
                shape,
                drafter_parameters(drafter),
                step_work(inputs, drafter),
                device_peaks(inputs.device, deployment.engine.threads, deployment.target.dtype),
            ),
        )

    return compute


@lru_cache(maxsize=8)
def device_peaks(device: str, threads: int | None, dtype: str) -> Peaks:
    """Peaks of a leased device; measured once per process on a CPU.

    Raises:
        DeploymentError: the driver does not know the GPU, or its peaks are not known.
    """
    if device == "cpu":
        return cpu_peaks(threads, dtype=dtype)
    import pynvml

    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(int(device.removeprefix("cuda:")))
        return gpu_peaks(str(pynvml.nvmlDeviceGetName(handle)))
    except pynvml.NVMLError as error:
        raise DeploymentError(
            f"the driver does not answer for {device} ({error})",
            where="platform.devices",
            fix="check nvidia-smi",
        ) from error


def step_work(inputs: CeilingInputs, drafter: Path) -> StepWork:
    """Work of an average step of the measured system."""
    tokens = sum(len(item.tokens) for item in inputs.recordings)
    steps = max(sum(profile.steps for profile in inputs.profiles), 1)
    return StepWork(
        rows=inputs.rows,
        drafted=inputs.positions or max(_trained_rows(drafter) - 1, 1),
        context=tokens / len(inputs.recordings) / 2 + inputs.prompt_tokens,
        prompt_rows_per_step=inputs.prompt_tokens * len(inputs.profiles) / steps,
        prefills_per_step=len(inputs.profiles) / steps,
    )


def _trained_rows(drafter: Path) -> int:
    """Rows of the drafter's trained block, the anchor included."""
    path = drafter / "config.json"
    config = read_json_object(path, WorkloadError, FOLDER_FIX)
    rows = config.get("dflash_config", config).get("block_size", config.get("block_size"))
    if not isinstance(rows, int) or rows < 1:
        raise WorkloadError("names no block_size", where=str(path), fix="give a drafter's folder")
    return rows
