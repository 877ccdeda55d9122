"""Sampling: the load of this host as the kernel counts it, and of its GPUs as their driver says it.

Of the host only files of /proc that the kernel answers from its own memory: no disk is waited for.
The driver is asked by a child, which its parent asks by a byte, and never waits for. One that hung
or crashed is replaced after a pause, in which samples have no GPUs.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import signal
import sys
import threading
import time
from dataclasses import dataclass
from typing import Dict, FrozenSet, Optional, Tuple

from runner.core.wire.codec import decode, encode
from runner.core.wire.facts import GpuProcess
from runner.core.wire.files import MAX_SAMPLE_FILE
from runner.core.wire.order import Order
from runner.core.wire.paths import RunPaths, is_run_id
from runner.core.wire.run_info import GpuSample, GpuUser, Sample
from runner.host.gpu import nvml, query
from runner.host.process import procfs, subreaper
from runner.host.process.bounded_child import BoundedChild, report_facts
from runner.host.process.jobs import Submit
from runner.host.storage.run_folder import append, write_atomic

ANSWER_S = 3.0  # how long a driver may take
RETRY_S = 60.0  # after its child hung or crashed the driver is asked again
FOREVER_S = 1e9
FIRST_AFTER_S = 1.0  # after the program's start; short runs have samples, too
MAX_GPUS = 64
MAX_USERS = 8  # of one GPU, those with most memory first
THROTTLE_REASONS = {
    "power": 0x4 | 0x80,  # the power cap; the power brake
    "thermal": 0x20 | 0x40,  # the driver's, the hardware's
    "hardware": 0x8,  # any slowdown by the hardware
}
"""Bits of nvmlClocksEventReasons; idle, settings of applications and sync boost are no trouble."""

_GRAPHICS_TEMPERATURE = ctypes.c_uint(0)  # NVML_TEMPERATURE_GPU
_MAX_TEXT = 100


@dataclass(frozen=True)
class GpuAnswer:
    gpus: Tuple[GpuSample, ...] = ()
    error: str = ""  # why there are none


class GpuChild:
    """The child, and its successors; at most one is there at a time."""

    def __init__(self) -> None:
        self._has_driver = query.has_driver()
        self._child: Optional[BoundedChild] = None
        self._question_fd = -1
        self._asked_at = 0.0  # unless no answer is awaited
        self._retry_at = 0.0
        self._problem = ""

    @property
    def pids(self) -> FrozenSet[int]:
        """The child, as long as it is there: one that hangs in the kernel outlives SIGKILL."""
        pid = self._child.pid if self._child else 0
        return frozenset((pid,)) if pid and procfs.is_running(pid) else frozenset()

    def poll(self) -> Optional[GpuAnswer]:
        """Return what the driver says now, or why it does not; None while that is awaited."""
        child = self._child
        if not self._has_driver:
            return GpuAnswer()
        if child is None or child.code is not None:
            if time.monotonic() < self._retry_at or self.pids:
                return GpuAnswer(error=self._problem)
            try:
                child = self._start()
            except OSError as error:
                return self._give_up(f"no process can ask the driver: {error.strerror}")
        if not self._asked_at:
            self._asked_at = time.monotonic()
            with contextlib.suppress(OSError):  # it has ended
                os.write(self._question_fd, b"?")
        child.advance()
        if child.raw_report.endswith(b"\n"):
            self._asked_at = 0.0
            report = child.report()
            child.raw_report = b""
            try:
                return decode(GpuAnswer, report)
            except ValueError as error:  # a driver that reports nonsense
                return GpuAnswer(error=f"NVML: {error}"[:200])
        problem = ""
        if child.code is not None:
            end = f"was ended by signal {-child.code}" if child.code < 0 else f"ended: {child.text}"
            problem = f"the process that asks the driver {end}"[:200]
        elif time.monotonic() - self._asked_at > ANSWER_S:
            problem = f"the driver did not answer within {ANSWER_S:g} s"
        return self._give_up(problem) if problem else None

    def _start(self) -> BoundedChild:
        input_fd, self._question_fd = os.pipe()
        child = BoundedChild(functools.partial(_serve, os.getpid()), FOREVER_S, input_fd)
        os.close(input_fd)
        self._child = child
        self._asked_at = 0.0
        return child

    def close(self) -> None:
        """End the child; one that hangs in the kernel is not waited for."""
        if self._child is not None:
            self._child.kill()
        if self._question_fd >= 0:
            os.close(self._question_fd)
            self._question_fd = -1

    def _give_up(self, problem: str) -> GpuAnswer:
        self.close()
        self._problem = problem
        self._retry_at = time.monotonic() + RETRY_S
        return GpuAnswer(error=problem)


def _serve(parent_pid: int) -> None:
    """Answer questions; a driver that hangs does not keep the child when its parent ends."""
    subreaper.die_with_parent(signal.SIGKILL)
    reader = GpuReader()
    while os.getppid() == parent_pid and os.read(0, 1):
        report_facts(**encode(reader.answer()))


class GpuReader:
    """Asks the driver, and waits for it; keeps the library open."""

    def __init__(self) -> None:
        self._library: Optional[nvml.Nvml] = None
        self._users: Dict[int, str] = {}

    def answer(self) -> GpuAnswer:
        try:
            library = self._library or nvml.Nvml()
            self._library = library
            count = min(library.device_count(), MAX_GPUS)
            return GpuAnswer(tuple(self._read_gpu(library, index) for index in range(count)))
        except Exception as failure:  # noqa: BLE001 (the parent is to know)
            self._library = None
            return GpuAnswer(error=f"NVML: {failure}"[:_MAX_TEXT])

    def _read_gpu(self, library: nvml.Nvml, index: int) -> GpuSample:
        """Return a sample; a value that the driver does not know or withholds is None."""
        name = ""
        try:
            device = library.handle(index)
            name = library.query_text("nvmlDeviceGetName", device)
            rates = nvml.known(lambda: library.utilization(device)) or (None, None)
            used, total = nvml.known(lambda: library.memory(device)) or (None, None)
            (power_mw,) = library.known_ints("nvmlDeviceGetPowerUsage", device)
            (temperature_c,) = library.known_ints(
                "nvmlDeviceGetTemperature", device, _GRAPHICS_TEMPERATURE
            )
            reasons = library.known_ints(nvml.CLOCK_REASONS, device, kind=ctypes.c_ulonglong)
            bits = reasons[0] or 0
            processes = nvml.known(lambda: library.processes(device)) or ()
            largest = sorted(processes, key=lambda process: -process.memory)[:MAX_USERS]
            return GpuSample(
                index,
                name,
                utilization=rates[0],
                memory_busy=rates[1],
                memory_used=used,
                memory_total=total,
                power_w=None if power_mw is None else power_mw / 1000,
                temperature_c=temperature_c,
                throttled=tuple(why for why, mask in THROTTLE_REASONS.items() if bits & mask),
                users=tuple(map(self._user, largest)),
            )
        except nvml.NvmlError as error:
            return GpuSample(index, name, error=str(error)[:_MAX_TEXT])

    def _user(self, process: GpuProcess) -> GpuUser:
        """Return whose process this is; in a PID namespace of our own, only its pid is known."""
        folder = f"/proc/{process.pid}"
        environ = procfs.read_text(f"{folder}/environ")  # "" where it is hidden
        match = re.search(r"(?:^|\0)RUNNER_RUN_ID=([^\0]*)", environ)
        run_id = match[1] if match and is_run_id(match[1]) else ""
        command = procfs.process_command(process.pid)[:_MAX_TEXT]
        try:
            user = self._user_name(os.stat(folder).st_uid)
        except OSError:
            user = ""
        return GpuUser(process.pid, user, command, process.memory, run_id=run_id)

    def _user_name(self, uid: int) -> str:
        """Return the user's number until a thread of its own knows the name: DNS may hang."""

        def find() -> None:
            self._users[uid] = procfs.user_name(uid)

        if uid not in self._users:
            self._users[uid] = str(uid)
            with contextlib.suppress(RuntimeError):  # no more threads
                threading.Thread(target=find, daemon=True).start()
        return self._users[uid]


class Sampler:
    """Takes samples; the CPU's is the mean since the sample before, or since it was made.

    A cgroup makes no difference: it is the load of the whole machine.
    """

    def __init__(self, node: str, attempt: int = 0, root: str = "/") -> None:
        self._node = node
        self._attempt = attempt
        self._root = root
        self.gpus = GpuChild()
        self._counted = self._count()

    def poll(self) -> Optional[Sample]:
        """Return a sample of now; None while the driver is asked, which has `ANSWER_S`."""
        answer = self.gpus.poll()
        if answer is None:
            return None
        before = self._counted
        self._counted = self._count()
        busy, ticks = (now - then for now, then in zip(self._counted, before))  # noqa: B905
        cpu = round(100 * min(1.0, max(0.0, busy / ticks)), 1) if ticks > 0 else None
        text = procfs.read_text(os.path.join(self._root, "proc/meminfo"))
        memory = {name: int(kib) << 10 for name, kib in re.findall(r"(\w+): +(\d+) kB", text)}
        total = memory.get("MemTotal", 0)
        free = memory.get("MemAvailable")  # what programs can still get without swapping
        return Sample(
            self._node,
            self._attempt,
            round(time.time(), 3),
            cores=os.cpu_count(),
            cpu=cpu,
            memory_used=None if free is None else max(0, total - free),
            memory_total=total or None,
            gpus=answer.gpus,
            gpu_error=answer.error,
        )

    def _count(self) -> Tuple[int, int]:
        """Return the ticks of all cores since the boot: those at work, and all."""
        words = procfs.read_text(os.path.join(self._root, "proc/stat")).partition("\n")[0].split()
        ticks = [
            int(word) for word in words[1:9] if word.isdigit()
        ]  # guests are part of user and nice
        idle = sum(ticks[3:5])  # waiting for a disk is no work
        return sum(ticks) - idle, sum(ticks)


class SampleRecorder:
    """Writes a sample down at every interval, until that is not possible.

    None is taken while the one before waits for a disk. The interval doubles whenever the file is
    full.
    """

    def __init__(self, folder: RunPaths, order: Order, submit: Submit) -> None:
        self.sampler = Sampler(order.node, order.attempt)
        self._submit = submit
        self._path = folder.samples(order.attempt)
        self._interval_s = order.sample_s
        self._next_at = time.monotonic() + min(FIRST_AFTER_S, self._interval_s)
        self._is_writing = False
        self._is_over = not order.sample_s

    def tick(self) -> None:
        now = time.monotonic()
        if self._is_over or self._is_writing or now < self._next_at:
            return
        sample = self.sampler.poll()
        if sample is not None:
            self._next_at = max(self._next_at + self._interval_s, now)
            self._is_writing = True
            line = sample.to_line().encode()
            self._submit(functools.partial(write_sample, self._path, line), self._on_written)

    def _on_written(self, size: Optional[int]) -> None:
        self._is_writing = False
        if size is None:  # nothing more may be: room made on a full disk is for the run's end
            self._is_over = True
        elif size > MAX_SAMPLE_FILE:
            self._interval_s *= 2


def write_sample(path: str, line: bytes) -> Optional[int]:
    """Append a sample; return the size of the file, None where it cannot be written.

    Of a file that is full, every second sample is dropped.
    """
    try:
        append(path, line)
        size = os.stat(path).st_size
        if size > MAX_SAMPLE_FILE:
            with open(path, "rb") as file:
                lines = file.read().splitlines(keepends=True)
            write_atomic(path, b"".join(lines[::2]))
    except OSError as error:
        with contextlib.suppress(OSError):  # the log of the supervisor may be on a full disk
            print(f"no more samples: {os.strerror(error.errno or 0)}", file=sys.stderr, flush=True)
        return None
    return size
