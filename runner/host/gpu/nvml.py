"""GPUs as NVIDIA's management library tells of them. For a child of its own: a driver may hang."""

from __future__ import annotations

import ctypes
from typing import Any, Iterator, Sequence, Tuple

from runner.core.model.facts import Gpu, GpuProcess
from runner.core.model.hardware import Driver

LIBRARIES = (
    "libnvidia-ml.so.1",
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
    "/run/opengl-driver/lib/libnvidia-ml.so.1",
)

_TEXT = 96
_SENTINEL = 0xAA
_STRIDES = (16, 24, 32)
_CAPACITY = 1024
_BROKEN = (15, 16)
"""NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED."""
_NOT_AVAILABLE = (1 << 64) - 1


class NvmlError(Exception):
    """The library is not there, or it answered with an error.

    Attributes:
        broken: Whether that says that the GPU cannot be used.
    """

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.broken = code in _BROKEN


class Memory(ctypes.Structure):
    """nvmlMemory_t: `used` counts what the driver keeps for itself."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class Memory2(ctypes.Structure):
    """nvmlMemory_v2_t (since driver 510): what the driver keeps stands apart, as in nvidia-smi."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )

    VERSION = 2 << 24 | 40


class Pci(ctypes.Structure):
    """nvmlPciInfo_t: where a GPU is plugged in."""

    _fields_ = (
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device_id", ctypes.c_uint),
        ("pci_subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


class Nvml:
    """An initialised NVML; every method raises NvmlError when the driver refuses."""

    def __init__(self) -> None:
        self._library = _load(LIBRARIES)
        self._call("nvmlInit_v2")

    def driver(self) -> Driver:
        """Return which driver this is, and the newest CUDA that it supports.

        That is the CUDA of libcuda: a forward-compatible one on the library path counts.
        """
        buffer = ctypes.create_string_buffer(_TEXT)
        self._call("nvmlSystemGetDriverVersion", buffer, ctypes.c_uint(_TEXT))
        version = buffer.value.decode(errors="replace")
        try:
            (number,) = self.numbers("nvmlSystemGetCudaDriverVersion_v2", kind=ctypes.c_int)
        except NvmlError:
            return Driver(version)
        return Driver(version, f"{number // 1000}.{number % 1000 // 10}")

    def numbers(
        self, function: str, *args: object, count: int = 1, kind: Any = ctypes.c_uint
    ) -> Tuple[int, ...]:
        """Return the `count` numbers that a function writes behind its other arguments."""
        found = [kind() for _ in range(count)]
        self._call(function, *args, *map(ctypes.byref, found))
        return tuple(number.value for number in found)

    def count(self) -> int:
        """Return how many GPUs there are."""
        return self.numbers("nvmlDeviceGetCount_v2")[0]

    def handle(self, index: int) -> ctypes.c_void_p:
        """Return what the other methods call the GPU by."""
        device = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(device))
        return device

    def text(self, function: str, device: ctypes.c_void_p) -> str:
        """Return what `nvmlDeviceGetName` or `nvmlDeviceGetUUID` says."""
        buffer = ctypes.create_string_buffer(_TEXT)
        self._call(function, device, buffer, ctypes.c_uint(_TEXT))
        return buffer.value.decode(errors="replace")

    def bus(self, device: ctypes.c_void_p) -> str:
        """Return its PCI address, like "0000:3b:00"."""
        place = Pci()
        self._call("nvmlDeviceGetPciInfo_v3", device, ctypes.byref(place))
        return f"{place.domain:04x}:{place.bus:02x}:{place.device:02x}"

    def memory(self, device: ctypes.c_void_p) -> Tuple[int, int]:
        """Return the bytes in all and the bytes in use."""
        newer = Memory2(version=Memory2.VERSION)
        try:
            self._call("nvmlDeviceGetMemoryInfo_v2", device, ctypes.byref(newer))
        except NvmlError:
            older = Memory()
            self._call("nvmlDeviceGetMemoryInfo", device, ctypes.byref(older))
            return older.total, older.used
        return newer.total, newer.used

    def utilization(self, index: int) -> Tuple[int, int]:
        """Return the percent of the last moments with a kernel, and with its memory in use."""
        rates = (ctypes.c_uint * 2)()
        self._call("nvmlDeviceGetUtilizationRates", self.handle(index), rates)
        return rates[0], rates[1]

    def processes(self, device: ctypes.c_void_p) -> Tuple[GpuProcess, ...]:
        """Return the processes that compute there."""
        name = "nvmlDeviceGetComputeRunningProcesses"
        for suffix, stride in (("_v3", 24), ("_v2", 24), ("", 16)):
            if hasattr(self._library, name + suffix):
                buffer = (ctypes.c_ubyte * (_CAPACITY * _STRIDES[-1]))()
                ctypes.memset(buffer, _SENTINEL, len(buffer))
                count = ctypes.c_uint(_CAPACITY)
                self._call(name + suffix, device, ctypes.byref(count), buffer)
                return parse_processes(bytes(buffer), count.value, stride)
        return ()

    def _call(self, function: str, *args: object) -> None:
        try:
            code = getattr(self._library, function)(*args)
        except AttributeError:
            raise NvmlError(f"{function} is not in this driver's library") from None
        if code != 0:
            say = self._library.nvmlErrorString
            say.restype = ctypes.c_char_p
            text: bytes = say(code) or b"error %d" % code
            raise NvmlError(text.decode(errors="replace"), code)


def gpus(nvml: Nvml) -> Iterator[Gpu]:
    """Yield every GPU with what can be known of it; a broken one has but its index, and why."""
    for index in range(nvml.count()):
        name = uuid = error = ""
        total = used = 0
        processes: Tuple[GpuProcess, ...] = ()
        try:  # from what even a restricted device tells to what it may keep to itself
            device = nvml.handle(index)
            name = nvml.text("nvmlDeviceGetName", device)
            uuid = nvml.text("nvmlDeviceGetUUID", device)
            total, used = nvml.memory(device)
            processes = nvml.processes(device)
        except NvmlError as refused:
            error = str(refused) if refused.broken or not name else ""
        yield Gpu(index, name, uuid, total, used, processes, error)


def parse_processes(buffer: bytes, count: int, usual: int) -> Tuple[GpuProcess, ...]:
    """Return the `count` processes that the driver wrote into a buffer full of `_SENTINEL`.

    The first 535 drivers gave the records of `_v3` 8 more bytes and took them back later, both
    without a new version: only how much was written tells how long a record is.
    """
    written = len(buffer.rstrip(bytes((_SENTINEL,))))
    stride = next((size for size in _STRIDES if size * count == written), usual)
    found = []
    for start in range(0, count * stride, stride):
        pid = int.from_bytes(buffer[start : start + 4], "little")
        memory = int.from_bytes(buffer[start + 8 : start + 16], "little")
        found.append(GpuProcess(pid, 0 if memory == _NOT_AVAILABLE else memory))
    return tuple(found)


def _load(libraries: Sequence[str]) -> Any:
    reason = ""
    for name in libraries:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            reason = reason or str(error)
    raise NvmlError(reason)
