"""Samples record: `samples.jsonl` beside `metrics.jsonl`, of all nodes and attempts, by time.

It is made anew of what was downloaded from the hosts, whole or not at all. Of more than fits, every
n-th sample of each node is kept, the last one always.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import os
from collections.abc import Iterator
from pathlib import Path

from runner.control.record.file_names import HOSTS_FOLDER
from runner.core.model.samples import MAX_LINE, parse_sample
from runner.core.protocol.paths import SAMPLES_FILE, is_node_name
from runner.core.protocol.remote_files import MAX_SAMPLE_FILE, SAMPLES_PATH

MAX_RECORD = 32 << 20  # bytes
MARGIN = 0.95  # lines differ in length


def merge(folder: Path, max_size: int = MAX_RECORD) -> None:
    """Write the samples of all hosts to one file, unless the disk does not allow it."""
    paths = [*folder.glob(f"{HOSTS_FOLDER}/*/attempt_*/{SAMPLES_FILE}")]
    temp_path = folder / f".{SAMPLES_FILE}.{os.getpid()}.new"
    try:
        size = sum(min(path.stat().st_size, MAX_SAMPLE_FILE) for path in paths)
        stride = max(1, math.ceil(size / (MARGIN * max_size)))
        samples = heapq.merge(*(sorted(_legal(path, stride)) for path in paths))
        if paths:
            with temp_path.open("wb") as file:
                file.writelines(line for _, line in samples)
            temp_path.replace(folder / SAMPLES_FILE)
    except OSError:
        with contextlib.suppress(OSError):
            temp_path.unlink()


def _legal(path: Path, stride: int) -> Iterator[tuple[float, bytes]]:
    """Yield time and line of the legal samples of a host's file; a host lies."""
    node = path.parents[1].name
    match = SAMPLES_PATH.fullmatch(f"{path.parent.name}/{path.name}")
    if not match or not is_node_name(node):
        return
    with path.open("rb") as file:
        lines = file.read(2 * MAX_SAMPLE_FILE).splitlines(keepends=True)
    for line in lines[(len(lines) - 1) % stride :: stride]:
        with contextlib.suppress(ValueError):
            sample = parse_sample(line) if line.endswith(b"\n") and len(line) <= MAX_LINE else None
            if sample and (sample.node, sample.attempt) == (node, int(match[1])):
                yield sample.wall, line
