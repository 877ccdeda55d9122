"""Samples record: `samples.jsonl` beside `metrics.jsonl`, of all nodes and attempts, by time.

It is made anew of what was downloaded from the hosts, whole or not at all. Of more than fits, every
n-th sample of each node is kept, the last one always.
"""

from __future__ import annotations

import contextlib
import heapq
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from runner.control.record.file_names import HOSTS_FOLDER
from runner.core.model.samples import MAX_LINE, Sample, parse_sample
from runner.core.protocol.paths import SAMPLES_FILE, is_node_name
from runner.core.protocol.remote_files import MAX_SAMPLE_FILE, SAMPLES_PATH

MAX_RECORD = 32 << 20  # bytes
MARGIN = 0.95  # lines differ in length


def merge(folder: Path, max_size: int = MAX_RECORD) -> str:
    """Write the samples of all hosts to one file; return why that was not possible."""
    paths = sorted(_downloaded(folder))
    if not paths:
        return ""
    size = sum(min(_size(path), MAX_SAMPLE_FILE) for path, _, _ in paths)
    stride = max(1, math.ceil(size / (MARGIN * max_size)))
    samples = heapq.merge(*(_checked(*each, stride) for each in paths))
    temp_path = folder / f".{SAMPLES_FILE}.{os.getpid()}.new"
    try:
        with temp_path.open("wb") as file:
            file.writelines(line for _, line in samples)
        temp_path.replace(folder / SAMPLES_FILE)
    except OSError as error:
        with contextlib.suppress(OSError):
            temp_path.unlink()
        return f"cannot write {folder / SAMPLES_FILE}: {error.strerror}"
    return ""


def _downloaded(folder: Path) -> Iterator[tuple[Path, str, int]]:
    """Yield the files from hosts, with the node and the attempt that they are of."""
    for path in folder.glob(f"{HOSTS_FOLDER}/*/attempt_*/{SAMPLES_FILE}"):
        match = SAMPLES_PATH.fullmatch(f"{path.parent.name}/{path.name}")
        node = path.parents[1].name
        if match and is_node_name(node):
            yield path, node, int(match[1])


def _checked(path: Path, node: str, attempt: int, stride: int) -> list[tuple[float, bytes]]:
    """Return the legal samples of a host's file by time; a host lies."""
    try:
        with path.open("rb") as file:
            lines = file.read(2 * MAX_SAMPLE_FILE).splitlines(keepends=True)
    except OSError:
        return []
    kept = lines[(len(lines) - 1) % stride :: stride]
    return sorted((sample.wall, line) for sample, line in _legal(kept, node, attempt))


def _legal(lines: Iterable[bytes], node: str, attempt: int) -> Iterator[tuple[Sample, bytes]]:
    """Yield the samples of a node and an attempt, each with its line."""
    for line in lines:
        with contextlib.suppress(ValueError):
            sample = parse_sample(line) if line.endswith(b"\n") and len(line) <= MAX_LINE else None
            if sample and (sample.node, sample.attempt) == (node, attempt):
                yield sample, line


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
