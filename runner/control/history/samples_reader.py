"""Reader of `samples.jsonl`: the load of each node and GPU over time."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from runner.control.history.bounded_reader import Problems, blocks_of_lines
from runner.control.history.series import SeriesBuilder
from runner.control.record.file_names import HOSTS_FOLDER
from runner.core.codec import parse_json
from runner.core.history.run_data import GpuLoad, NodeLoad, Series
from runner.core.model.samples import SAMPLES_VERSION, GpuSample, Sample
from runner.core.protocol.paths import SAMPLES_FILE, is_node_name

MAX_SIZE = 512 << 20  # bytes of the files that are read, all together
MAX_SAMPLES = 100_000  # that are read; of more, every n-th of each node
MAX_NODES, MAX_GPUS, MAX_SPANS = 2000, 64, 500
MAX_NAME, MAX_INDEX = 100, 1 << 16
PENDING = 256  # values of a figure that are taken at once

NODE_FIGURES = (
    *("cpu", "memory_used", "memory_total", "net_received", "net_sent"),
    *("disk_read", "disk_written"),
)
GPU_FIGURES = (
    *("utilization", "memory_used", "memory_total", "power_w", "power_limit_w", "temperature_c"),
)

Bounds = Mapping[str, tuple[float, float]]


def _bounds_of(cls: type[Sample | GpuSample], names: Collection[str]) -> Bounds:
    """Return between which numbers a figure is legal: a sample is read in a tenth of the time."""
    return {each.name: each.metadata["bounds"] for each in fields(cls) if each.name in names}


NODE_BOUNDS, GPU_BOUNDS = _bounds_of(Sample, NODE_FIGURES), _bounds_of(GpuSample, GPU_FIGURES)
TIME_BOUNDS = _bounds_of(Sample, ("wall",))["wall"]

_NODE = re.compile(rb'"node":\s?"([^"]{1,255})"')


def read_loads(
    folder: Path, max_points: int, earliest: float, problems: Problems
) -> tuple[NodeLoad, ...]:
    """Return the load of each node; samples before `earliest` are left out."""
    files = _files(folder)
    size = 0
    for path in files:
        with contextlib.suppress(OSError):  # it is being replaced
            size += path.lstat().st_size
    stride = 1 + size // 300 // MAX_SAMPLES
    nodes: dict[str, _NodeHistory] = {}
    bad = 0
    for line in _lines(files, stride, problems):
        try:
            sample = parse_json(line)
            node, wall = sample["node"], sample["wall"]
        except (ValueError, KeyError, TypeError):
            bad += 1
            continue
        is_ours = sample.get("v") == SAMPLES_VERSION and is_node_name(node)
        if not (is_ours and _is_between(wall, TIME_BOUNDS)):
            bad += 1
        elif wall >= earliest and (node in nodes or len(nodes) < MAX_NODES):
            nodes.setdefault(node, _NodeHistory(max_points)).take(wall, sample)
    if bad:
        problems.add(SAMPLES_FILE, f"{bad:,} lines are no samples")
    return tuple(nodes[name].build(name) for name in sorted(nodes, key=_natural))


def _files(folder: Path) -> list[Path]:
    """Return the file of all nodes, or else those that `pull` brought."""
    merged = folder / SAMPLES_FILE
    if os.path.lexists(merged):  # whatever it has become
        return [merged]
    return sorted(
        folder.glob(f"{HOSTS_FOLDER}/*/attempt_*/{SAMPLES_FILE}"), key=lambda p: _natural(str(p))
    )


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


def _is_between(value: object, bounds: tuple[float, float]) -> bool:
    return type(value) in (int, float) and bounds[0] <= value <= bounds[1]  # type: ignore[operator]


class _Figures:
    """Series of figures by their names."""

    def __init__(self, bounds: Bounds, max_points: int) -> None:
        self._bounds = bounds
        self._max_points = max_points
        self._waiting: dict[str, tuple[list[float], list[float]]] = {}
        self._series: dict[str, SeriesBuilder] = {}

    def take(self, wall: float, source: Mapping[str, Any]) -> None:
        """Take the figures of a sample that are legal."""
        for name, bounds in self._bounds.items():
            value = source.get(name)
            if value is None or not _is_between(value, bounds):
                continue
            if name not in self._waiting:
                self._waiting[name] = [], []
            times, values = self._waiting[name]
            times.append(wall)
            values.append(float(value))
            if len(values) >= PENDING:
                self._flush(name)

    def _flush(self, name: str) -> None:
        times, values = self._waiting.pop(name)
        series = self._series.setdefault(name, SeriesBuilder(self._max_points))
        series.extend(times, [0] * len(values), values)

    def build(self) -> dict[str, Series]:
        """Return the series."""
        for name in [*self._waiting]:
            self._flush(name)
        return {
            name: self._series[name].build(has_steps=False)
            for name in self._bounds
            if name in self._series
        }


class _GpuHistory:
    """The samples of one GPU."""

    def __init__(self, max_points: int) -> None:
        self.figures = _Figures(GPU_BOUNDS, max_points)
        self._spans: list[tuple[float, float, str]] = []

    def take(self, wall: float, gpu: Mapping[str, Any]) -> None:
        """Take a sample."""
        self.figures.take(wall, gpu)
        given = gpu.get("throttled")
        why = ", ".join(map(str, given))[:MAX_NAME] if isinstance(given, list) else ""
        if self._spans and self._spans[-1][1] == math.inf and self._spans[-1][2] != why:
            self._spans[-1] = (self._spans[-1][0], wall, self._spans[-1][2])
        is_open = bool(self._spans) and self._spans[-1][1] == math.inf
        if why and not is_open and len(self._spans) < MAX_SPANS:
            self._spans.append((wall, math.inf, why))

    def build(self, index: int, last: float) -> GpuLoad:
        spans = tuple((begin, min(end, last), why) for begin, end, why in self._spans)
        return GpuLoad(index, self.figures.build(), spans)


class _NodeHistory:
    """The samples of one node."""

    def __init__(self, max_points: int) -> None:
        self._max_points = max_points
        self._figures = _Figures(NODE_BOUNDS, max_points)
        self._gpus: dict[int, _GpuHistory] = {}
        self._error = ""
        self._last = -math.inf

    def take(self, wall: float, sample: Mapping[str, Any]) -> None:
        """Take a sample."""
        self._last = max(self._last, wall)
        if isinstance(sample.get("gpu_error"), str):
            self._error = sample["gpu_error"]
        self._figures.take(wall, sample)
        gpus = sample.get("gpus")
        for gpu in gpus[:MAX_GPUS] if isinstance(gpus, list) else ():
            index = gpu.get("index") if isinstance(gpu, dict) else None
            if type(index) is not int or not 0 <= index < MAX_INDEX:
                continue
            if index not in self._gpus and len(self._gpus) < MAX_GPUS:
                self._gpus[index] = _GpuHistory(self._max_points)
            if index in self._gpus:
                self._gpus[index].take(wall, gpu)

    def build(self, node: str) -> NodeLoad:
        """Return the load of the node."""
        gpus = tuple(self._gpus[index].build(index, self._last) for index in sorted(self._gpus))
        return NodeLoad(node, self._figures.build(), gpus, self._error[:300])


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts gpu2 before gpu10."""
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+", name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]
