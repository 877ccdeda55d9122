"""View of a cluster: a table of nodes, the unusual first, with their GPUs and runs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from runner.core.codec import encode
from runner.core.model.samples import GpuSample, Sample
from runner.core.text import format_age, format_ranges, natural_key, printable
from runner.ui.figures import left_text, step_text
from runner.ui.layout import group_names
from runner.ui.reports.run_table import Row

VIEW_VERSION = 2

LEVELS = "\N{LOWER ONE EIGHTH BLOCK}▂▃▄▅▆▇█"
MAX_LEVELS = 16  # GPUs of a node that have a block of their own
MAX_TEXT = 120  # characters of a host's word
MIN_WIDTH = 12
GAP = 2

WIDE = 100
"""In fewer columns, temperature, CPU and memory of the host are left out."""

MEDIUM = 72
"""In fewer columns, the memory of the GPUs is left out, too."""

BUSY_PERCENT = 60
IN_USE_SHARE = 0.01
"""Of its memory: the driver itself takes less, and a process on the GPU takes more."""

HOT_C = 85.0
UNOWNED_SHARE = 0.05  # of a GPU's memory, in use without a process
IDLE_PERCENT = 10
WORKING_PERCENT = 50
"""A GPU of a run below the one is idle while another one of that run is above the other."""

MIN_SAMPLES = 3  # before a GPU is called idle
SILENT = 0
BROKEN = 1
USUAL = 9
"""How much something unusual matters; the smaller, the more."""


@dataclass(frozen=True)
class NodeView:
    """What is known of one node."""

    name: str
    samples: tuple[Sample, ...] = ()  # the last ones, the newest last
    silence: str = ""  # why it does not answer
    runs: tuple[str, ...] = ()  # the active ones that it takes part in

    @property
    def sample(self) -> Sample | None:
        """The newest sample, if it is one of now."""
        return self.samples[-1] if self.samples and not self.silence else None


@dataclass(frozen=True)
class ClusterView:
    """What is known of all nodes."""

    title: str  # the cluster's name, or the run's id
    nodes: tuple[NodeView, ...] = ()
    runs: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def silent(self) -> dict[str, str]:
        """Why nodes do not answer."""
        return {node.name: node.silence for node in self.nodes if node.silence}

    def as_data(self) -> Mapping[str, Any]:
        """Return all of it as data for a program."""
        return {
            "v": VIEW_VERSION,
            "time": round(time.time(), 3),
            "nodes": {node.name: encode(node.sample) for node in self.nodes if node.sample},
            "runs": [encode(row) for row in self.runs],
            "unreachable": self.silent,
            "notes": list(self.notes),
        }


def render_view(view: ClusterView, width: int, most: int | None = None) -> Group:
    """Return a line for each node, and below them what is unusual, the worst first.

    Of more than `most` lines, those of usual nodes are left out and counted.
    """
    working = _working_runs(view.nodes)
    unusual = {node.name: sorted(_unusual(node, working)) for node in view.nodes}

    def order(node: NodeView) -> tuple[int, list[tuple[int, int | str]]]:
        found = unusual[node.name]
        return found[0][0] if found else USUAL, natural_key(node.name)

    nodes = sorted(view.nodes, key=order)
    told = [(severity, node.name, text) for node in nodes for severity, text in unusual[node.name]]
    told.sort(key=lambda each: each[0])
    below = [
        Text.assemble(
            f"{_clean(name)}: ",
            (text, "red" if severity <= BROKEN else "yellow"),
            overflow="ellipsis",
            no_wrap=True,
        )
        for severity, name, text in told
    ]
    below += [Text(_clean(note), "dim") for note in view.notes]
    if most is not None:
        below = below[: most // 2]
        most = max(1, most - len(below))
    shown = nodes[:most]
    if len(shown) < len(nodes):
        below.append(Text(f"and {len(nodes) - len(shown)} more nodes", "dim"))
    return Group(_header(view), _table(shown, view.runs, width), *below)


def _table(nodes: Sequence[NodeView], runs: Iterable[Row], width: int) -> Table:
    has_gpus = any(map(_gpus, nodes))
    headers = ["NODE"]
    headers += ["GPUS", "USE"] if has_gpus else []
    headers += ["GPU MEM"] if has_gpus and width >= MEDIUM else []
    headers += ["TEMP"] if has_gpus and width >= WIDE else []
    headers += ["CPU", "RAM"] if width >= WIDE or not has_gpus else []
    rows = {row.run_id: row for row in runs}
    cells = [_cells(node, rows) for node in nodes]
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="dim")
    left = width
    for header in (*headers, "RUN", "PROGRESS"):
        longest = max([len(header), *(each[header].cell_len for each in cells)])
        is_text = header in ("NODE", "GPUS", "RUN", "PROGRESS")
        table.add_column(
            header,
            width=min(longest, max(MIN_WIDTH, left)),
            no_wrap=True,
            overflow="ellipsis",
            justify="left" if is_text else "right",
        )
        left -= longest + GAP
    for each in cells:
        table.add_row(*(each[header] for header in (*headers, "RUN", "PROGRESS")))
    return table


def _header(view: ClusterView) -> Text:
    gpus = [gpu for node in view.nodes for gpu in _gpus(node)]
    answering = sum(node.sample is not None for node in view.nodes)
    header = Text.assemble((_clean(view.title), "bold"))
    hosts = f"  {answering} of {len(view.nodes)} nodes answer"
    header.append(hosts, "red" if view.silent else "")
    if gpus:
        header.append(f"  {sum(map(_is_in_use, gpus))} of {len(gpus)} GPUs in use")
    header.append(f"  {time.strftime('%H:%M:%S')}", "dim")
    return header


def _cells(node: NodeView, rows: Mapping[str, Row]) -> dict[str, Text]:
    """Return the cells of a node by their headers."""
    sample = node.sample
    gpus = _gpus(node)
    runs = dict.fromkeys([*node.runs, *(u.run_id for gpu in gpus for u in gpu.users if u.run_id)])
    found = [rows[run] for run in runs if run in rows]
    return {
        "NODE": Text(_clean(node.name), "red" if node.silence else ""),
        "GPUS": _levels(gpus),
        "USE": Text(_percent(_mean_utilization(gpus))),
        "GPU MEM": Text(_memory(gpus)),
        "TEMP": _temperature(gpus),
        "CPU": Text(_percent(sample.cpu if sample else None)),
        "RAM": Text(_percent(_memory_percent(sample))),
        "RUN": Text(", ".join(map(_clean, runs))),
        "PROGRESS": Text(", ".join(map(_progress, found))),
    }


def _progress(row: Row) -> str:
    if row.progress is None:
        return f"{_clean(row.state)} {format_age(row.age)}"
    texts = (step_text(row.progress), left_text(row.progress.left_s))
    return ", ".join(filter(None, texts))


def _levels(gpus: Sequence[GpuSample]) -> Text:
    text = Text()
    for gpu in gpus[:MAX_LEVELS]:
        if gpu.utilization is None:
            text.append("!" if gpu.error else "?", "red" if gpu.error else "dim")
            continue
        style = "dim"
        if _is_in_use(gpu):
            style = "green" if gpu.utilization >= BUSY_PERCENT else "yellow"
        level = min(len(LEVELS) - 1, gpu.utilization * len(LEVELS) // 100)
        text.append(LEVELS[level], style)
    if len(gpus) > MAX_LEVELS:
        text.append(f"+{len(gpus) - MAX_LEVELS}", "dim")
    return text


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}%"


def _memory(gpus: Iterable[GpuSample]) -> str:
    known = [gpu for gpu in gpus if gpu.memory_used is not None and gpu.memory_total]
    if not known:
        return ""
    used = sum(gpu.memory_used or 0 for gpu in known)
    total = sum(gpu.memory_total or 0 for gpu in known)
    return f"{used / 1e9:.0f}/{total / 1e9:.0f} GB"


def _temperature(gpus: Iterable[GpuSample]) -> Text:
    hottest = max((g.temperature_c for g in gpus if g.temperature_c is not None), default=None)
    if hottest is None:
        return Text()
    return Text(f"{hottest:.0f} °C", "red" if hottest >= HOT_C else "")


def _memory_percent(sample: Sample | None) -> float | None:
    if sample is None or sample.memory_used is None or not sample.memory_total:
        return None
    return 100 * sample.memory_used / sample.memory_total


def _unusual(node: NodeView, working: set[str]) -> Iterator[tuple[int, str]]:
    """Yield how much something unusual matters, 0 the most, and what it is."""
    if node.silence:
        yield SILENT, f"not answering: {_clean(node.silence)}"
    if node.sample and node.sample.gpu_error:
        yield BROKEN, _clean(node.sample.gpu_error)
    rules = (_broken, _throttled, _hot, _foreign)
    for severity, rule in enumerate(rules, BROKEN):
        yield from _grouped(severity, ((gpu, rule(gpu)) for gpu in _gpus(node)))
    idle = ((gpu, _idle(node, gpu, working)) for gpu in _gpus(node))
    yield from _grouped(BROKEN + len(rules), idle)


def _grouped(severity: int, found: Iterable[tuple[GpuSample, str]]) -> Iterator[tuple[int, str]]:
    texts = group_names((str(gpu.index), text) for gpu, text in found if text)
    for text, indices in texts.items():
        yield severity, f"{format_ranges(sorted(map(int, indices)), 'GPU')} {text}"


def _broken(gpu: GpuSample) -> str:
    return f"error: {_clean(gpu.error)}" if gpu.error else ""


def _throttled(gpu: GpuSample) -> str:
    reasons = [_clean(reason) for reason in gpu.throttled[:3] if reason != "power"]
    return f"throttled ({', '.join(reasons)})" if reasons else ""


def _hot(gpu: GpuSample) -> str:
    return "hot" if gpu.temperature_c is not None and gpu.temperature_c >= HOT_C else ""


def _foreign(gpu: GpuSample) -> str:
    for user in gpu.users:
        if not user.run_id:
            program = user.command.rpartition("/")[2]
            return f"used by {_clean(f'{user.user}:{program}')}, outside of runs"
    if not gpu.users and _memory_share(gpu) > UNOWNED_SHARE:
        return "memory in use by no known process"
    return ""


def _idle(node: NodeView, gpu: GpuSample, working: set[str]) -> str:
    recent = [
        other.utilization
        for sample in node.samples
        for other in sample.gpus
        if other.index == gpu.index and other.utilization is not None
    ]
    runs = [user.run_id for user in gpu.users if user.run_id in working]
    if len(recent) < MIN_SAMPLES or max(recent) >= IDLE_PERCENT or not runs:
        return ""
    return f"idle in {_clean(runs[0])}"


def _working_runs(nodes: Iterable[NodeView]) -> set[str]:
    """Return the runs of which some GPU works."""
    busy = [
        gpu for node in nodes for gpu in _gpus(node) if (gpu.utilization or 0) >= WORKING_PERCENT
    ]
    return {user.run_id for gpu in busy for user in gpu.users if user.run_id}


def _gpus(node: NodeView) -> tuple[GpuSample, ...]:
    return node.sample.gpus if node.sample else ()


def _is_in_use(gpu: GpuSample) -> bool:
    return bool(gpu.users or gpu.utilization or _memory_share(gpu) > IN_USE_SHARE)


def _memory_share(gpu: GpuSample) -> float:
    return (gpu.memory_used or 0) / gpu.memory_total if gpu.memory_total else 0.0


def _mean_utilization(gpus: Iterable[GpuSample]) -> float | None:
    known = [gpu.utilization for gpu in gpus if gpu.utilization is not None]
    return sum(known) / len(known) if known else None


def _clean(text: str) -> str:
    """Return a host's word in short, and such that no terminal acts upon it."""
    return printable(text[:MAX_TEXT])
