"""Samples record: `samples.jsonl` beside `metrics.jsonl`, of all nodes and attempts, by time.

It is made anew of what was downloaded from the hosts, whole or not at all. Of more than fits, every
n-th sample of each node is kept, the last one always.
"""

from __future__ import annotations

import contextlib
import heapq
import os
from collections.abc import Iterator
from pathlib import Path

from runner.control.record.files import HOSTS_FOLDER
from runner.core.model.samples import MAX_LINE, parse_sample
from runner.core.protocol.paths import SAMPLES_FILE, is_node_name
from runner.core.protocol.remote_files import MAX_SAMPLE_FILE, SAMPLES_PATH

MAX_RECORD = 32 << 20  # bytes


def merge(folder: Path, max_size: int = MAX_RECORD) -> str:
    """Write the samples of all hosts to one file; return why that was not possible."""
    paths = sorted(_downloaded(folder))
    if not paths:
        return ""
    stride = -(-sum(min(_size(path), MAX_SAMPLE_FILE) for path, _, _ in paths) // max_size)
    samples = heapq.merge(*(_checked(*each, max(1, stride)) for each in paths))
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
    samples: list[tuple[float, bytes]] = []
    try:
        with path.open("rb") as file:
            lines = file.read(2 * MAX_SAMPLE_FILE).splitlines(keepends=True)
    except OSError:
        return samples
    for place in range((len(lines) - 1) % stride, len(lines), stride):
        line = lines[place]
        if len(line) > MAX_LINE or not line.endswith(b"\n"):
            continue
        with contextlib.suppress(ValueError):
            sample = parse_sample(line)
            if (sample.node, sample.attempt) == (node, attempt):
                samples.append((sample.wall, line))
    return sorted(samples)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
