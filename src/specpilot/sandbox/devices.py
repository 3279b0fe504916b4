"""Device nodes and names of one leased GPU: a confined server sees exactly that one."""

from pathlib import Path

from specpilot.core.errors import SpecPilotError
from specpilot.core.measurement import DeviceState

SHARED_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
OPTIONAL_NODES = ("/dev/nvidia-uvm-tools", "/dev/nvidia-caps")


def device_nodes(device: str) -> tuple[Path, ...]:
    """Nodes under /dev that a process on `device` needs; none for `cpu`.

    Raises:
        SpecPilotError: the GPU or its driver is not there.
    """
    if device == "cpu":
        return ()
    import pynvml

    with _driver(device):
        minor = pynvml.nvmlDeviceGetMinorNumber(pynvml.nvmlDeviceGetHandleByIndex(_index(device)))
    required = [Path(f"/dev/nvidia{minor}"), *map(Path, SHARED_NODES)]
    return (*required, *(path for path in map(Path, OPTIONAL_NODES) if path.exists()))


def device_state(device: str) -> DeviceState:
    """Identity and condition of a device now.

    Raises:
        SpecPilotError: the GPU or its driver is not there.
    """
    if device == "cpu":
        return DeviceState(device=device, uuid=_cpu_name())
    import pynvml

    with _driver(device):
        handle = pynvml.nvmlDeviceGetHandleByIndex(_index(device))
        reasons = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
        return DeviceState(
            device=device,
            uuid=str(pynvml.nvmlDeviceGetUUID(handle)),
            clock_mhz=pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
            power_watts=pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            temperature_celsius=pynvml.nvmlDeviceGetTemperature(
                handle, pynvml.NVML_TEMPERATURE_GPU
            ),
            throttle_reasons=_throttle_names(reasons),
        )


class _driver:
    """The driver's session, with its errors as ours."""

    def __init__(self, device: str) -> None:
        self._device = device

    def __enter__(self) -> None:
        import pynvml

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise self._failure(error) from error

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        import pynvml

        pynvml.nvmlShutdown()
        if isinstance(error, pynvml.NVMLError):
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> SpecPilotError:
        return SpecPilotError(
            f"the NVIDIA driver does not give access to it ({error})",
            where=f"device {self._device}",
            fix="name a device that this machine has, or `cpu`",
        )


def _index(device: str) -> int:
    return int(device.removeprefix("cuda:"))


def _throttle_names(reasons: int) -> tuple[str, ...]:
    import pynvml

    prefix = "nvmlClocksEventReason"
    known = {
        name.removeprefix(prefix): int(getattr(pynvml, name))
        for name in dir(pynvml)
        if name.startswith(prefix)
    }
    # Several names may stand for one bit or for a set of bits; only single bits are reasons.
    single = {name: bit for name, bit in known.items() if bit > 0 and bit & (bit - 1) == 0}
    return tuple(sorted(name for name, bit in single.items() if reasons & bit))


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return "cpu"
