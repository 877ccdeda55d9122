"""Sample recorder of a supervisor: the load of this host while its program runs, on record.

It is called in the supervisor's loop, and waits for neither drivers nor disks: a sample is written
by the thread of the files, and none is taken while the one before waits for a disk.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from typing import FrozenSet, Optional

from runner.core.model.plan import Order
from runner.core.protocol.paths import RunPaths
from runner.core.protocol.remote_files import MAX_SAMPLE_FILE
from runner.host.process.file_worker import Submit
from runner.host.sampling import Sampler
from runner.host.storage.run_folder import append, write_atomic

FIRST_AFTER_S = 1.0  # after the program's start; short runs have samples, too


class SampleRecorder:
    """Takes a sample at every interval of the order; what goes wrong ends it, never the run.

    The interval doubles whenever the file is full.
    """

    def __init__(self, folder: RunPaths, order: Order, submit: Submit) -> None:
        self._order = order
        self._submit = submit
        self._path = folder.samples(order.attempt)
        self._sampler: Optional[Sampler] = None
        self._interval_s = order.sample_s
        self._next_at = 0.0
        self._is_writing = False
        self._is_over = not order.sample_s or order.is_standby

    @property
    def child_pids(self) -> FrozenSet[int]:
        """Our own helper, which does not belong to the run."""
        return self._sampler.child_pids if self._sampler else frozenset()

    def tick(self, *, is_running: bool) -> None:
        """Take a sample if one is due; end with the program."""
        if self._is_over:
            return
        if self._sampler is not None and not is_running:
            self.close()
        elif is_running and not self._is_writing:
            try:
                self._sample()
            except Exception as error:  # noqa: BLE001 (the run goes on without samples)
                self.close()
                self._submit(functools.partial(_note, f"{type(error).__name__}: {error}"))

    def close(self) -> None:
        """End our helper."""
        self._is_over = True
        if self._sampler is not None:
            self._sampler.close()

    def _sample(self) -> None:
        now = time.monotonic()
        if self._sampler is None:
            self._sampler = Sampler(self._order.node, self._order.attempt)
            self._next_at = now + min(FIRST_AFTER_S, self._interval_s)
        sample = self._sampler.poll() if now >= self._next_at else None
        if sample is not None:
            self._next_at = max(self._next_at + self._interval_s, now)
            self._is_writing = True
            line = sample.to_line().encode()
            self._submit(functools.partial(write_sample, self._path, line), self._on_written)

    def _on_written(self, size: Optional[int]) -> None:
        self._is_writing = False
        if size is None:  # nothing more may be: room made on a full disk is for the run's end
            self.close()
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
        _note(os.strerror(error.errno or 0))
        return None
    return size


def _note(reason: str) -> None:
    """Write to the log of the supervisor, which may be on a full disk."""
    with contextlib.suppress(OSError):
        print(f"no more samples: {reason}", file=sys.stderr, flush=True)
