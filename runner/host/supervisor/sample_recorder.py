"""Sample recorder of a supervisor: the load of this host while its program runs, on record.

It is called in the supervisor's loop, and waits for neither drivers nor disks: a sample is written
by the thread of the files, and none is taken while the one before waits for a disk.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from typing import FrozenSet, Optional

from runner.core.model.plan import Order
from runner.core.protocol.paths import RunPaths
from runner.host.process.file_worker import Submit
from runner.host.sampling.sampler import Sampler
from runner.host.storage.sample_file import SampleFile

FIRST_AFTER_S = 1.0  # after the program's start; short runs have samples, too


class SampleRecorder:
    """Takes a sample at every interval of the order; what goes wrong ends it, never the run."""

    def __init__(self, folder: RunPaths, order: Order, submit: Submit) -> None:
        self._order = order
        self._submit = submit
        self._file = SampleFile(folder, order.attempt)
        self._sampler: Optional[Sampler] = None
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
                self._end(f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """End our helper."""
        self._is_over = True
        if self._sampler is not None:
            self._sampler.close()

    def _sample(self) -> None:
        now = time.monotonic()
        interval_s = self._order.sample_s
        if self._sampler is None:
            self._sampler = Sampler(self._order.node, self._order.attempt)
            self._next_at = now + min(FIRST_AFTER_S, interval_s)
        sample = self._sampler.poll() if now >= self._next_at else None
        if sample is not None:
            self._next_at = max(self._next_at + interval_s, now)
            self._is_writing = True
            line = sample.to_line().encode()
            self._submit(functools.partial(self._file.append, line), self._on_written)

    def _on_written(self, problem: str) -> None:
        self._is_writing = False
        if problem and not self._is_over:
            self._end(problem)

    def _end(self, reason: str) -> None:
        self.close()
        self._submit(functools.partial(_note, f"no more samples: {reason}"))


def _note(text: str) -> None:
    """Write to the log of the supervisor, which may be on a full disk."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)
