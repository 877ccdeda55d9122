"""Kernel log (/dev/kmsg): its lines since the boot, as far as they are kept and readable."""

from __future__ import annotations

import os
from typing import Iterator, Tuple

KMSG = "/dev/kmsg"

MAX_RECORD_BYTES = 8 << 10
MAX_RECORDS = 50_000


def read_lines(log: str = KMSG) -> Iterator[Tuple[float, str]]:
    """Yield the monotonic time and the text of each line; nothing if the log may not be read.

    A record looks like `3,512,1239866964,-;Out of memory: Killed process 7 …`: level, number and
    microseconds, a flag, and the text.
    """
    try:
        descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        for _ in range(MAX_RECORDS):
            try:
                record = os.read(descriptor, MAX_RECORD_BYTES).decode(errors="replace")
            except BrokenPipeError:  # the kernel overwrote the record
                continue
            except OSError:
                break
            if not record:
                break
            for line in record.splitlines():
                head, _, text = line.partition(";")
                fields = head.split(",")
                if len(fields) > 2 and fields[2].isdigit():
                    yield int(fields[2]) / 1e6, text
    finally:
        os.close(descriptor)
