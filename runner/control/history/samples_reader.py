"""Reader of `samples.jsonl`: the load of each node and GPU over time."""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from runner.control.history.record_files import Problems, blocks_of_lines
from runner.control.history.series import SeriesBuilder
from runner.core.history.run_data import GpuLoad, NodeLoad, Series
from runner.core.model.samples import GpuSample, Sample, parse_sample

SAMPLES_FILE = "samples.jsonl"
MAX_SIZE = 512 << 20  # bytes of the files that are read, all together
MAX_SAMPLES = 100_000  # that are read; of more, every n-th of each node
MAX_NODES, MAX_GPUS, MAX_SPANS = 2000, 64, 500
MAX_POINTS_IN_ALL = 400_000

NODE_FIGURES = (
    *("cpu", "memory_used", "memory_total", "net_received", "net_sent"),
    *("disk_read", "disk_written"),
)
GPU_FIGURES = (
    *("utilization", "memory_used", "memory_total", "power_w", "power_limit_w", "temperature_c"),
)

_NODE = re.compile(rb'"node":\s?"([^"]{1,255})"')


def read_loads(
    folder: Path, max_points: int, earliest: float, problems: Problems
) -> tuple[NodeLoad, ...]:
    """Return the load of each node; samples before `earliest` are left out."""
    files = _files(folder)
    sizes = sum(path.lstat().st_size for path in files)
    stride = 1 + sizes // 300 // MAX_SAMPLES if files else 1
    nodes: dict[str, _NodeHistory] = {}
    bad = 0
    for line in _lines(files, stride, problems):
        try:
            sample = parse_sample(line)
        except (ValueError, RecursionError, TypeError, AttributeError):
            bad += 1
            continue
        if sample.wall < earliest or (sample.node not in nodes and len(nodes) >= MAX_NODES):
            continue
        nodes.setdefault(sample.node, _NodeHistory(max_points)).take(sample)
    if bad:
        problems.add(SAMPLES_FILE, f"{bad:,} lines are no samples")
    return tuple(nodes[name].build(name) for name in sorted(nodes, key=_natural))


def _files(folder: Path) -> list[Path]:
    """Return the file of all nodes, or else those that `pull` brought."""
    merged = folder / SAMPLES_FILE
    if os.path.lexists(merged):  # whatever it has become
        return [merged]
    return sorted(folder.glob(f"hosts/*/attempt_*/{SAMPLES_FILE}"), key=lambda p: _natural(str(p)))


def _lines(files: list[Path], stride: int, problems: Problems) -> Iterator[bytes]:
    """Yield every n-th line of each node."""
    counts = defaultdict[bytes, int](int)
    left = MAX_SIZE
    for path in files:
        for block in blocks_of_lines(path, left, problems):
            left -= len(block)
            for line in block.splitlines():
                match = _NODE.search(line, 0, 1000) if stride > 1 else None
                if match:
                    counts[match[1]] += 1
                if line and (match is None or counts[match[1]] % stride == 0):
                    yield line


class _Figures:
    """Series of figures by their names."""

    def __init__(self, names: tuple[str, ...], max_points: int) -> None:
        self._names, self._max_points = names, max_points
        self._series: dict[str, SeriesBuilder] = {}

    def take(self, wall: float, source: Sample | GpuSample) -> None:
        for name in self._names:
            value = getattr(source, name)
            if value is not None:
                if name not in self._series:
                    self._series[name] = SeriesBuilder(self._max_points)
                self._series[name].extend((wall,), (0,), (float(value),))

    def build(self) -> dict[str, Series]:
        return {name: each.build(has_steps=False) for name, each in self._series.items()}


class _GpuHistory:
    """The samples of one GPU."""

    def __init__(self, max_points: int) -> None:
        self.name = ""
        self.figures = _Figures(GPU_FIGURES, max_points)
        self._spans: list[tuple[float, float, str]] = []

    def take(self, wall: float, gpu: GpuSample) -> None:
        self.name = gpu.name or self.name
        self.figures.take(wall, gpu)
        why = ", ".join(gpu.throttled)[:100]
        if self._spans and self._spans[-1][1] == math.inf and self._spans[-1][2] != why:
            self._spans[-1] = (self._spans[-1][0], wall, self._spans[-1][2])
        is_open = bool(self._spans) and self._spans[-1][1] == math.inf
        if why and not is_open and len(self._spans) < MAX_SPANS:
            self._spans.append((wall, math.inf, why))

    def build(self, index: int, last: float) -> GpuLoad:
        spans = tuple((begin, min(end, last), why) for begin, end, why in self._spans)
        return GpuLoad(index, self.name, self.figures.build(), spans)


class _NodeHistory:
    """The samples of one node."""

    def __init__(self, max_points: int) -> None:
        self._max_points = max_points
        self._figures = _Figures(NODE_FIGURES, max_points)
        self._gpus: dict[int, _GpuHistory] = {}
        self._error, self._last = "", -math.inf

    def take(self, sample: Sample) -> None:
        """Take a sample."""
        self._last = max(self._last, sample.wall)
        self._error = sample.gpu_error or self._error
        self._figures.take(sample.wall, sample)
        for gpu in sample.gpus[:MAX_GPUS]:
            if gpu.index not in self._gpus and len(self._gpus) < MAX_GPUS:
                self._gpus[gpu.index] = _GpuHistory(self._max_points)
            if gpu.index in self._gpus:
                self._gpus[gpu.index].take(sample.wall, gpu)

    def build(self, node: str) -> NodeLoad:
        """Return the load of the node."""
        gpus = tuple(self._gpus[index].build(index, self._last) for index in sorted(self._gpus))
        return NodeLoad(node, self._figures.build(), gpus, self._error[:300])


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts gpu2 before gpu10."""
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+", name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]
