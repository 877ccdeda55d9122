"""Device reader: what the drivers of GPUs and InfiniBand say, asked in a process of its own.

A driver may hang or crash whoever asks it. The rest of a sample comes without it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import threading
from typing import Any, Callable, Dict, List, Optional, Set, Tuple, TypeVar

from runner.core.codec import encode
from runner.core.model.facts import GpuProcess
from runner.core.model.samples import GpuSample, GpuUser
from runner.core.protocol.paths import is_run_id
from runner.host.gpu import nvml, query
from runner.host.process import procfs

MAX_GPUS, MAX_USERS = 64, 16  # users of one GPU, those with most memory first
LOOK_UP_S = 0.1  # how long an answer waits for a new user's name
THROTTLE_REASONS = {
    "power": 0x4 | 0x80,  # the power cap; the power brake
    "thermal": 0x20 | 0x40,  # the driver's, the hardware's
    "hardware": 0x8,  # any slowdown by the hardware
}
"""Bits of nvmlClocksEventReasons; idle, settings of applications and sync boost are no trouble."""

CLOCK_REASONS = (
    *("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
)
"""The function that returns them: its name since driver 535, and before."""

Value = TypeVar("Value")
_NO_VALUES: Tuple[int, ...] = ()

_INFINIBAND, _WAYS = "sys/class/infiniband", ("rcv", "xmit")
_DATA_UNIT = 4  # bytes that InfiniBand counts as one
_GRAPHICS_TEMPERATURE = ctypes.c_uint(0)  # NVML_TEMPERATURE_GPU
_MAX_TEXT = 100


def has_devices(root: str = "/") -> bool:
    """Return whether there is a driver to ask."""
    return query.has_driver() or bool(procfs.list_names(os.path.join(root, _INFINIBAND)))


class DeviceReader:
    """Reads the devices, in the child; keeps the driver's library open."""

    def __init__(self) -> None:
        self._library: Optional[nvml.Nvml] = None
        self._names: Dict[int, str] = {}  # of GPUs
        self._users = UserNames()

    def answer(self) -> bytes:
        """Return the samples of the GPUs, or why there are none, and the bytes of InfiniBand."""
        data: Dict[str, Any] = {"gpus": [], "error": ""}
        try:
            data["rdma"] = rdma_bytes()
            if query.has_driver():
                data["gpus"] = encode(self._read_gpus())
        except nvml.NvmlError as error:
            self._library = None
            data["error"] = f"NVML: {error}"[:_MAX_TEXT]
        except Exception as error:  # noqa: BLE001 (the parent is to know)
            data["error"] = f"{type(error).__name__}: {error}"[:_MAX_TEXT]
        return json.dumps(data, separators=(",", ":")).encode() + b"\n"

    def _read_gpus(self) -> List[GpuSample]:
        self._library = library = self._library or nvml.Nvml()
        return [self._read_gpu(library, i) for i in range(min(library.device_count(), MAX_GPUS))]

    def _read_gpu(self, library: nvml.Nvml, index: int) -> GpuSample:
        try:
            device = library.handle(index)
            if index not in self._names:
                self._names[index] = library.query_text("nvmlDeviceGetName", device)
        except nvml.NvmlError as error:
            return GpuSample(index, self._names.get(index, ""), error=str(error)[:_MAX_TEXT])
        values = DeviceValues(library, device)
        used, total = values.memory()
        rates = library.utilization(index)
        power, limit = (
            values.number(f"nvmlDeviceGet{name}", scale=1000)
            for name in ("PowerUsage", "EnforcedPowerLimit")
        )
        return GpuSample(
            index,
            self._names[index],
            utilization=rates and min(100, rates[0]),
            memory_used=used,
            memory_total=total,
            power_w=power,
            power_limit_w=limit,
            temperature_c=values.number("nvmlDeviceGetTemperature", _GRAPHICS_TEMPERATURE),
            throttled=values.throttled(),
            users=self._users_of(values.processes()),
            error=values.error,
        )

    def _users_of(self, processes: Tuple[GpuProcess, ...]) -> Tuple[GpuUser, ...]:
        """Return whose processes these are.

        The pids are the driver's: those of the machine. In a PID namespace of our own there may be
        no such process, then only the pid is known.
        """
        kept = sorted(processes, key=lambda process: -process.memory)[:MAX_USERS]
        uids = [_uid_of(process.pid) for process in kept]
        names = self._users.look_up({uid for uid in uids if uid is not None})
        return tuple(
            GpuUser(
                process.pid,
                "" if uid is None else names.get(uid, str(uid)),
                procfs.process_command(process.pid),
                process.memory,
                _run_of(process.pid),
            )
            for process, uid in zip(kept, uids)  # noqa: B905 (strict came with 3.10)
        )


class DeviceValues:
    """The values of one GPU; one that the driver does not know or withholds is None."""

    def __init__(self, library: nvml.Nvml, device: ctypes.c_void_p) -> None:
        self._library, self._device = library, device
        self.error = ""  # why the GPU cannot be used

    def memory(self) -> Tuple[Optional[int], Optional[int]]:
        """Return the bytes of its memory that are used, and all of them."""
        unknown: Tuple[Optional[int], Optional[int]] = (None, None)
        return self._ask(lambda: self._library.memory(self._device), unknown)

    def number(self, function: str, *args: object, scale: int = 1) -> Optional[float]:
        """Return what a function says, in units of `scale`."""
        ask = functools.partial(self._library.query_ints, function, self._device, *args)
        values = self._ask(ask, _NO_VALUES)
        return values[0] / scale if values else None

    def throttled(self) -> Tuple[str, ...]:
        """Return why its clocks are lower than they could be."""
        for function in CLOCK_REASONS:
            kind = ctypes.c_ulonglong
            ask = functools.partial(self._library.query_ints, function, self._device, kind=kind)
            bits = self._ask(ask, _NO_VALUES)
            if bits:
                return tuple(why for why, mask in THROTTLE_REASONS.items() if bits[0] & mask)
        return ()

    def processes(self) -> Tuple[GpuProcess, ...]:
        """Return the processes that compute on it."""
        return self._ask(lambda: self._library.processes(self._device), ())

    def _ask(self, ask: Callable[[], Value], unknown: Value) -> Value:
        try:
            return ask()
        except nvml.NvmlError as error:
            if error.broken:
                self.error = str(error)[:_MAX_TEXT]
            return unknown


class UserNames:
    """Names of users; a thread looks them up, since a directory service may never answer."""

    def __init__(self, find: Callable[[int], str] = procfs.user_name) -> None:
        self._find = find
        self._names: Dict[int, str] = {}
        self._thread: Optional[threading.Thread] = None

    def look_up(self, uids: Set[int]) -> Dict[int, str]:
        """Return the names that are known by now."""
        missing = uids - self._names.keys()
        if missing and not (self._thread and self._thread.is_alive()):
            self._thread = threading.Thread(target=self._fill, args=(missing,), daemon=True)
            self._thread.start()
            self._thread.join(LOOK_UP_S)
        return dict(self._names)

    def _fill(self, uids: Set[int]) -> None:
        for uid in sorted(uids):
            self._names[uid] = self._find(uid)


def rdma_bytes(root: str = "/") -> Optional[Tuple[int, int]]:
    """Return the bytes that the ports of InfiniBand received and sent, None if there are none.

    /proc/net/dev knows nothing of them.
    """
    totals = []
    for card in procfs.list_names(os.path.join(root, _INFINIBAND)):
        ports = os.path.join(root, _INFINIBAND, card, "ports")
        for port in procfs.list_names(ports):
            folder = os.path.join(ports, port, "counters")
            texts = [procfs.read_text(f"{folder}/port_{way}_data").strip() for way in _WAYS]
            if all(text.isdigit() for text in texts):
                totals.append([int(text) * _DATA_UNIT for text in texts])
    if not totals:
        return None
    return sum(received for received, _ in totals), sum(sent for _, sent in totals)


def _uid_of(pid: int) -> Optional[int]:
    with contextlib.suppress(OSError):
        return os.stat(f"/proc/{pid}").st_uid
    return None


def _run_of(pid: int) -> str:
    """Return the run of ours that a process belongs to, "" if it is hidden or none."""
    for entry in procfs.read_text(f"/proc/{pid}/environ").split("\0"):
        name, _, value = entry.partition("=")
        if name == "RUNNER_RUN_ID" and is_run_id(value):
            return value
    return ""
