"""Devices: what the drivers of GPUs and InfiniBand say, asked in a child process.

A driver may hang or crash whoever asks it. The child is forked once, by the loop of its parent, who
asks by a byte and never waits for the answer. One that hung or crashed is replaced, each time after
a longer pause; the rest of a sample comes without it. It ends with its parent: by the kernel's
signal, at the end of the socket, and by an alarm while it asks a driver.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import re
import signal
import socket
import threading
import time
from dataclasses import dataclass, replace
from typing import Callable, Dict, FrozenSet, List, NoReturn, Optional, Tuple, TypeVar

from runner.core.codec import decode, encode
from runner.core.model.facts import GpuProcess
from runner.core.model.samples import MAX_LINE, GpuSample, GpuUser
from runner.core.protocol.paths import is_run_id
from runner.host.gpu import nvml, query
from runner.host.process import bounded_child, procfs, subreaper

ANSWER_S = 3.0  # how long a driver may take
FIRST_PAUSE_S = 10.0
LONGEST_PAUSE_S = 600.0
"""How long after its child hung or crashed the driver is asked again, and at most."""

MAX_GPUS = 64
MAX_USERS = 16  # of one GPU, those with most memory first
MAX_ANSWER = MAX_LINE - (4 << 10)  # bytes; the rest of a line is about the host
THROTTLE_REASONS = {
    "power": 0x4 | 0x80,  # the power cap; the power brake
    "thermal": 0x20 | 0x40,  # the driver's, the hardware's
    "hardware": 0x8,  # any slowdown by the hardware
}
"""Bits of nvmlClocksEventReasons; idle, settings of applications and sync boost are no trouble."""

CLOCK_REASONS = (
    "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetCurrentClocksThrottleReasons",
)
"""The function that returns them: its name since driver 535, and before."""

Value = TypeVar("Value")

_INFINIBAND = "sys/class/infiniband"
_DATA_UNIT = 4  # bytes that InfiniBand counts as one
_GRAPHICS_TEMPERATURE = ctypes.c_uint(0)  # NVML_TEMPERATURE_GPU
_MAX_TEXT = 100


@dataclass(frozen=True)
class DeviceAnswer:
    """What the drivers say."""

    gpus: Tuple[GpuSample, ...] = ()
    error: str = ""  # why there are no GPUs
    rdma: Optional[Tuple[int, int]] = None  # bytes received and sent by InfiniBand since the boot


def has_devices() -> bool:
    """Return whether there is a driver to ask."""
    return query.has_driver() or bool(procfs.list_names(f"/{_INFINIBAND}"))


class DeviceChild:
    """The child, and its successors; at most one is there at a time."""

    def __init__(self) -> None:
        self._pid = 0
        self._exit_code: Optional[int] = None
        self._socket: Optional[socket.socket] = None  # while the child is of use
        self._asked_at = 0.0  # unless no answer is awaited
        self._pause_s = FIRST_PAUSE_S
        self._retry_at = 0.0
        self._problem = ""

    @property
    def pids(self) -> FrozenSet[int]:
        """The child, as long as it is there: one that hangs in the kernel outlives SIGKILL."""
        if self._pid:
            self._note_end(subreaper.exit_code(self._pid))
        return frozenset((self._pid,)) if self._pid else frozenset()

    def poll(self) -> Optional[DeviceAnswer]:
        """Return what the drivers say now, or why they do not; None while that is awaited."""
        if self._socket is None and (time.monotonic() < self._retry_at or self.pids):
            return DeviceAnswer(error=self._problem)
        try:
            channel = self._socket or self._start()
        except OSError as error:
            return self._give_up(f"no process can ask the driver: {error.strerror}")
        try:
            if not self._asked_at:
                self._asked_at = time.monotonic()
                channel.send(b"?")
            data = channel.recv(MAX_ANSWER)
        except BlockingIOError:
            if time.monotonic() - self._asked_at <= ANSWER_S:
                return None
            return self._give_up(f"the driver did not answer within {ANSWER_S:g} s")
        except OSError:
            data = b""
        if not data:  # it has ended
            self.close()
            ended = f"was ended by signal {-self._exit_code}" if self._exit_code else "ended"
            return self._give_up(f"the process that asks the driver {ended}")
        self._asked_at = 0.0
        self._pause_s = FIRST_PAUSE_S
        return _parse(data)

    def close(self) -> None:
        """End the child; one that hangs in the kernel is not waited for."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._pid:
            self._note_end(subreaper.kill(self._pid))

    def _note_end(self, exit_code: Optional[int]) -> None:
        if exit_code is not None:
            self._exit_code = exit_code
            self._pid = 0  # which may be another's soon

    def _give_up(self, problem: str) -> DeviceAnswer:
        self.close()
        self._problem = problem
        self._retry_at = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return DeviceAnswer(error=problem)

    def _start(self) -> socket.socket:
        parent_pid = os.getpid()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._socket = ours  # `_give_up` closes it
        self._asked_at = 0.0
        self._exit_code = None
        with theirs:
            pid = subreaper.fork()
            if pid == 0:
                _run_child(theirs, parent_pid)
        self._pid = pid
        return ours


def _parse(data: bytes) -> DeviceAnswer:
    try:
        return decode(DeviceAnswer, json.loads(data))
    except ValueError as error:  # a driver that reports nonsense
        return DeviceAnswer(error=f"NVML: {error}"[:200])


def _run_child(theirs: socket.socket, parent_pid: int) -> NoReturn:
    try:
        subreaper.die_with_parent(signal.SIGKILL)
        null_fd = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):  # a log on a disk that hangs, or a channel of an agent
            os.dup2(null_fd, stream)
        bounded_child.enter({theirs.fileno()})
        reader = DeviceReader()
        while os.getppid() == parent_pid and theirs.recv(1):
            signal.setitimer(signal.ITIMER_REAL, ANSWER_S + 1)
            answer = reader.answer()
            signal.setitimer(signal.ITIMER_REAL, 0)
            theirs.send(answer)
    finally:
        os._exit(0)  # nothing may reach the parent's code


class DeviceReader:
    """Asks the drivers, and waits for them; keeps the library open."""

    def __init__(self) -> None:
        self._library: Optional[nvml.Nvml] = None
        self._names: Dict[int, str] = {}  # of GPUs
        self._users: Dict[int, str] = {}

    def answer(self) -> bytes:
        """Return a `DeviceAnswer` as JSON; of one that is too long, the users are left out."""
        gpus: Tuple[GpuSample, ...] = ()
        error = ""
        try:
            if query.has_driver():
                self._library = library = self._library or nvml.Nvml()
                count = min(library.device_count(), MAX_GPUS)
                gpus = tuple(self._read_gpu(library, index) for index in range(count))
        except Exception as failure:  # noqa: BLE001 (the parent is to know)
            self._library = None
            error = f"NVML: {failure}"[:_MAX_TEXT]
        answer = DeviceAnswer(gpus, error, rdma_bytes())
        data = json.dumps(encode(answer)).encode()
        if len(data) > MAX_ANSWER:
            gpus = tuple(replace(gpu, users=()) for gpu in gpus)
            data = json.dumps(encode(replace(answer, gpus=gpus))).encode()
        return data

    def _read_gpu(self, library: nvml.Nvml, index: int) -> GpuSample:
        """Return a sample; a value that the driver does not know or withholds is None."""
        try:
            device = library.handle(index)
            if index not in self._names:
                self._names[index] = library.query_text("nvmlDeviceGetName", device)
            number = functools.partial(_number, library, device)
            used, total = _known(library.memory, device) or (None, None)
            rates = library.utilization(index)
            return GpuSample(
                index,
                self._names[index],
                utilization=rates and min(100, rates[0]),
                memory_used=used,
                memory_total=total,
                power_w=number("nvmlDeviceGetPowerUsage", scale=1000),
                power_limit_w=number("nvmlDeviceGetEnforcedPowerLimit", scale=1000),
                temperature_c=number("nvmlDeviceGetTemperature", _GRAPHICS_TEMPERATURE),
                throttled=_throttled(library, device),
                users=self._users_of(_known(library.processes, device) or ()),
            )
        except nvml.NvmlError as error:
            return GpuSample(index, self._names.get(index, ""), error=str(error)[:_MAX_TEXT])

    def _users_of(self, processes: Tuple[GpuProcess, ...]) -> Tuple[GpuUser, ...]:
        """Return whose processes these are.

        The pids are the driver's: those of the machine. In a PID namespace of our own there may be
        no such process, then only the pid is known.
        """
        kept = sorted(processes, key=lambda process: -process.memory)[:MAX_USERS]
        return tuple(
            GpuUser(
                process.pid,
                self._user_of(process.pid),
                procfs.process_command(process.pid),
                process.memory,
                _run_of(process.pid),
            )
            for process in kept
        )

    def _user_of(self, pid: int) -> str:
        """Return the user's number until a thread of its own knows the name: DNS may hang."""
        try:
            uid = os.stat(f"/proc/{pid}").st_uid
        except OSError:
            return ""
        if uid not in self._users:
            self._users[uid] = str(uid)
            with contextlib.suppress(RuntimeError):  # no more threads
                threading.Thread(target=self._find_name, args=(uid,), daemon=True).start()
        return self._users[uid]

    def _find_name(self, uid: int) -> None:
        self._users[uid] = procfs.user_name(uid)


def _known(ask: Callable[..., Value], *args: object, **options: object) -> Optional[Value]:
    """Return what the driver says; None if it does not, unless the GPU is broken."""
    try:
        return ask(*args, **options)
    except nvml.NvmlError as error:
        if error.broken:
            raise
        return None


def _number(
    library: nvml.Nvml, device: ctypes.c_void_p, function: str, *args: object, scale: int = 1
) -> Optional[float]:
    values = _known(library.query_ints, function, device, *args)
    return values[0] / scale if values else None


def _throttled(library: nvml.Nvml, device: ctypes.c_void_p) -> Tuple[str, ...]:
    """Return why the clocks of a GPU are lower than they could be."""
    for function in CLOCK_REASONS:
        bits = _known(library.query_ints, function, device, kind=ctypes.c_ulonglong)
        if bits:
            return tuple(why for why, mask in THROTTLE_REASONS.items() if bits[0] & mask)
    return ()


def rdma_bytes(root: str = "/") -> Optional[Tuple[int, int]]:
    """Return the bytes that the ports of InfiniBand received and sent, None if there are none."""
    received: List[int] = []
    sent: List[int] = []
    for card in procfs.list_names(os.path.join(root, _INFINIBAND)):
        ports = os.path.join(root, _INFINIBAND, card, "ports")
        for port in procfs.list_names(ports):
            folder = os.path.join(ports, port, "counters")
            with contextlib.suppress(ValueError):  # a port of another kind has none
                received.append(int(procfs.read_text(f"{folder}/port_rcv_data")))
                sent.append(int(procfs.read_text(f"{folder}/port_xmit_data")))
    return (sum(received) * _DATA_UNIT, sum(sent) * _DATA_UNIT) if sent else None


def _run_of(pid: int) -> str:
    """Return the run of ours that a process belongs to, "" if it is hidden or none."""
    match = re.search(r"(?:^|\0)RUNNER_RUN_ID=([^\0]*)", procfs.read_text(f"/proc/{pid}/environ"))
    return match[1] if match and is_run_id(match[1]) else ""
