"""NVML: NVIDIA's management library by ctypes. It may hang or crash who asks: a child does."""

from __future__ import annotations

import ctypes
from typing import Any, Callable, Optional, Sequence, Tuple, TypeVar

from runner.core.wire.facts import Driver, GpuProcess

LIBRARIES: Tuple[str, ...] = (
    "libnvidia-ml.so.1",
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
    "/run/opengl-driver/lib/libnvidia-ml.so.1",
)

CLOCK_REASONS = "nvmlDeviceGetCurrentClocksThrottleReasons"  # newer drivers have it, too

Value = TypeVar("Value")

_TEXT_BYTES = 96
_SENTINEL = 0xAA
_RECORD = 24  # bytes
_LONG_RECORD = 32
_MAX_PROCESSES = 1024
_BROKEN_CODES = (15, 16)  # NVML_ERROR_GPU_IS_LOST, NVML_ERROR_RESET_REQUIRED
_NOT_AVAILABLE = (1 << 64) - 1


class NvmlError(Exception):
    """The library is not there, or a call failed; if `broken`, the GPU cannot be used."""

    def __init__(self, text: str, code: int = 0) -> None:
        super().__init__(text)
        self.broken = code in _BROKEN_CODES


class Memory(ctypes.Structure):
    """nvmlMemory_v2_t: the memory of a GPU in bytes, and apart from it what the driver reserves."""

    _fields_ = (
        ("version", ctypes.c_uint),
        *((name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")),
    )


class Nvml:
    """An initialised NVML; methods raise NvmlError when the driver refuses."""

    def __init__(self) -> None:
        self._library = _load()
        self._call("nvmlInit_v2")

    def driver(self) -> Driver:
        """Return the driver's version and the newest CUDA it supports.

        That is the CUDA of libcuda, which may be a forward-compatible one on the library path.
        """
        version = self.query_text("nvmlSystemGetDriverVersion")
        try:
            (number,) = self.query_ints("nvmlSystemGetCudaDriverVersion_v2", kind=ctypes.c_int)
        except NvmlError:
            return Driver(version)
        return Driver(version, f"{number // 1000}.{number % 1000 // 10}")

    def query_ints(
        self, function: str, *args: object, count: int = 1, kind: Any = ctypes.c_uint
    ) -> Tuple[int, ...]:
        """Return the `count` numbers that a function writes to its last arguments."""
        values = [kind() for _ in range(count)]
        self._call(function, *args, *map(ctypes.byref, values))
        return tuple(number.value for number in values)

    def known_ints(
        self, function: str, *args: object, count: int = 1, kind: Any = ctypes.c_uint
    ) -> Sequence[Optional[int]]:
        """Return the same, each None if the driver does not know; raise if the GPU is broken."""
        found = known(lambda: self.query_ints(function, *args, count=count, kind=kind))
        return found or [None] * count

    def device_count(self) -> int:
        return self.query_ints("nvmlDeviceGetCount_v2")[0]

    def handle(self, index: int) -> ctypes.c_void_p:
        device = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(device))
        return device

    def query_text(self, function: str, *device: ctypes.c_void_p) -> str:
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        self._call(function, *device, buffer, ctypes.c_uint(_TEXT_BYTES))
        return buffer.value.decode(errors="replace")

    def utilization(self, device: ctypes.c_void_p) -> Tuple[int, int]:
        """Return the percent of time with a kernel running, and with memory being accessed."""
        rates = (ctypes.c_uint * 2)()
        self._call("nvmlDeviceGetUtilizationRates", device, rates)
        return min(100, rates[0]), min(100, rates[1])

    def memory(self, device: ctypes.c_void_p) -> Tuple[int, int]:
        """Return the bytes of a GPU's memory that are used, and all of them; since driver 510."""
        memory = Memory(version=ctypes.sizeof(Memory) | 2 << 24)
        self._call("nvmlDeviceGetMemoryInfo_v2", device, ctypes.byref(memory))
        return memory.used, memory.total

    def processes(self, device: ctypes.c_void_p) -> Tuple[GpuProcess, ...]:
        name = "nvmlDeviceGetComputeRunningProcesses"
        version = "_v3" if hasattr(self._library, f"{name}_v3") else "_v2"
        buffer = (ctypes.c_ubyte * (_MAX_PROCESSES * _LONG_RECORD))()
        ctypes.memset(buffer, _SENTINEL, len(buffer))
        count = ctypes.c_uint(_MAX_PROCESSES)
        self._call(name + version, device, ctypes.byref(count), buffer)
        return parse_processes(bytes(buffer), count.value)

    def _call(self, function: str, *args: object) -> None:
        try:
            code = getattr(self._library, function)(*args)
        except AttributeError:
            raise NvmlError(f"{function} is not in this driver's library") from None
        if code != 0:
            error_string = self._library.nvmlErrorString
            error_string.restype = ctypes.c_char_p
            text: bytes = error_string(code) or b"error %d" % code
            raise NvmlError(text.decode(errors="replace"), code)


def known(ask: Callable[[], Value]) -> Optional[Value]:
    """Return what the driver says; None if it does not, unless the GPU is broken."""
    try:
        return ask()
    except NvmlError as error:
        if error.broken:
            raise
        return None


def parse_processes(buffer: bytes, count: int) -> Tuple[GpuProcess, ...]:
    """Return the `count` processes that the driver wrote into a buffer full of `_SENTINEL`.

    Early 535 drivers had records of `_v3` with 8 more bytes, without a new version: only the number
    of bytes written tells the size of a record.
    """
    written = len(buffer.rstrip(bytes((_SENTINEL,))))
    stride = _LONG_RECORD if written == _LONG_RECORD * count else _RECORD
    processes = []
    for start in range(0, count * stride, stride):
        pid = int.from_bytes(buffer[start : start + 4], "little")
        memory = int.from_bytes(buffer[start + 8 : start + 16], "little")
        processes.append(GpuProcess(pid, 0 if memory == _NOT_AVAILABLE else memory))
    return tuple(processes)


def _load() -> Any:
    reason = ""
    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            reason = reason or str(error)
    raise NvmlError(reason)
