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
from runner.ui.layout import new_table
from runner.ui.reports.run_table import Row

VIEW_VERSION = 2

LEVELS = "\N{LOWER ONE EIGHTH BLOCK}▂▃▄▅▆▇█"
MAX_LEVELS = 16  # GPUs of a node that have a block of their own
MAX_TEXT = 120  # characters of a host's word

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
THROTTLED = 2
HOT = 3
FOREIGN = 4
IDLE = 5
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

    @property
    def gpus(self) -> tuple[GpuSample, ...]:
        """What is known of its GPUs now."""
        return self.sample.gpus if self.sample else ()


@dataclass(frozen=True)
class ClusterView:
    """What is known of all nodes."""

    title: str  # the cluster's name, or the run's id
    nodes: tuple[NodeView, ...] = ()
    runs: tuple[Row, ...] = ()

    def as_data(self) -> Mapping[str, Any]:
        """Return all of it as data for a program."""
        return {
            "v": VIEW_VERSION,
            "time": round(time.time(), 3),
            "nodes": {node.name: encode(node.sample) for node in self.nodes if node.sample},
            "runs": [encode(row) for row in self.runs],
            "unreachable": {node.name: node.silence for node in self.nodes if node.silence},
        }


def render_view(view: ClusterView, width: int, most: int | None = None) -> Group:
    """Return a line for each node, and below them what is unusual, the worst first.

    Of more than `most` lines, those of usual nodes are left out and counted.
    """
    busy = (
        gpu
        for node in view.nodes
        for gpu in node.gpus
        if gpu.utilization is not None and gpu.utilization >= WORKING_PERCENT
    )
    working = {user.run_id for gpu in busy for user in gpu.users if user.run_id}
    unusual = {node.name: [*_unusual(node, working)] for node in view.nodes}

    def worst(node: NodeView) -> int:
        return min((severity for severity, _ in unusual[node.name]), default=USUAL)

    nodes = sorted(view.nodes, key=lambda node: (worst(node), natural_key(node.name)))
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
    if most is not None:
        below = below[: most // 2]
        most = max(1, most - len(below))
    shown = nodes[:most]
    if len(shown) < len(nodes):
        below.append(Text(f"and {len(nodes) - len(shown)} more nodes", "dim"))
    return Group(_header(view), _table(shown, view.runs, width), *below)


def _header(view: ClusterView) -> Text:
    gpus = [gpu for node in view.nodes for gpu in node.gpus]
    answering = sum(node.sample is not None for node in view.nodes)
    header = Text.assemble((_clean(view.title), "bold"))
    hosts = f"  {answering} of {len(view.nodes)} nodes answer"
    header.append(hosts, "red" if answering < len(view.nodes) else "")
    if gpus:
        header.append(f"  {sum(map(_is_in_use, gpus))} of {len(gpus)} GPUs in use")
    header.append(f"  {time.strftime('%H:%M:%S')}", "dim")
    return header


def _table(nodes: Sequence[NodeView], runs: Iterable[Row], width: int) -> Table:
    rows = {row.run_id: row for row in runs}
    has_gpus = any(node.gpus for node in nodes)
    table = new_table(header_style="dim")
    headers = ["NODE"]
    headers += ["GPUS", "USE"] if has_gpus else []
    headers += ["GPU MEM"] if has_gpus and width >= MEDIUM else []
    headers += ["TEMP"] if has_gpus and width >= WIDE else []
    headers += ["CPU", "RAM"] if width >= WIDE or not has_gpus else []
    for header in headers:
        is_text = header in ("NODE", "GPUS")
        table.add_column(
            header, justify="left" if is_text else "right", no_wrap=True, overflow="ellipsis"
        )
    table.add_column("RUN", no_wrap=True, overflow="ellipsis")
    table.add_column("PROGRESS")  # the one that gives way
    for node in nodes:
        cells = _cells(node)
        runs_there = [*node.runs, *(u.run_id for gpu in node.gpus for u in gpu.users if u.run_id)]
        names = dict.fromkeys(runs_there)
        progress = ", ".join(_progress(rows[name]) for name in names if name in rows)
        table.add_row(
            *(cells[header] for header in headers),
            Text(", ".join(map(_clean, names))),
            Text(progress, no_wrap=True, overflow="ellipsis"),
        )
    return table


def _cells(node: NodeView) -> dict[str, Text]:
    """Return the cells of a node by their headers."""
    sample = node.sample
    known = [gpu for gpu in node.gpus if gpu.memory_used is not None and gpu.memory_total]
    used = sum(gpu.memory_used or 0 for gpu in known) / 1e9
    total = sum(gpu.memory_total or 0 for gpu in known) / 1e9
    rates = [gpu.utilization for gpu in node.gpus if gpu.utilization is not None]
    hottest = max((g.temperature_c for g in node.gpus if g.temperature_c is not None), default=None)
    is_hot = hottest is not None and hottest >= HOT_C
    memory = None
    if sample and sample.memory_used is not None and sample.memory_total:
        memory = 100 * sample.memory_used / sample.memory_total
    return {
        "NODE": Text(_clean(node.name), "red" if node.silence else ""),
        "GPUS": _levels(node.gpus),
        "USE": _percent(sum(rates) / len(rates) if rates else None),
        "GPU MEM": Text(f"{used:.0f}/{total:.0f} GB" if known else ""),
        "TEMP": Text("" if hottest is None else f"{hottest:.0f} °C", "red" if is_hot else ""),
        "CPU": _percent(sample.cpu if sample else None),
        "RAM": _percent(memory),
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


def _percent(value: float | None) -> Text:
    return Text("" if value is None else f"{value:.0f}%")


def _unusual(node: NodeView, working: set[str]) -> Iterator[tuple[int, str]]:
    """Yield how much something unusual matters, 0 the most, and what it is."""
    if node.silence:
        yield SILENT, f"not answering: {_clean(node.silence)}"
    if node.sample and node.sample.gpu_error:
        yield BROKEN, _clean(node.sample.gpu_error)
    found: dict[tuple[int, str], list[int]] = {}
    for gpu in node.gpus:
        for problem in _gpu_problems(node, gpu, working):
            found.setdefault(problem, []).append(gpu.index)
    for (severity, text), indices in sorted(found.items()):
        yield severity, f"{format_ranges(sorted(indices), 'GPU')} {text}"


def _gpu_problems(node: NodeView, gpu: GpuSample, working: set[str]) -> Iterator[tuple[int, str]]:
    if gpu.error:
        yield BROKEN, f"error: {_clean(gpu.error)}"
    if reasons := [_clean(reason) for reason in gpu.throttled[:3] if reason != "power"]:
        yield THROTTLED, f"throttled ({', '.join(reasons)})"
    if gpu.temperature_c is not None and gpu.temperature_c >= HOT_C:
        yield HOT, "hot"
    if foreign := next((user for user in gpu.users if not user.run_id), None):
        program = foreign.command.rpartition("/")[2]
        yield FOREIGN, f"used by {_clean(f'{foreign.user}:{program}')}, outside of runs"
    elif not gpu.users and _memory_share(gpu) > UNOWNED_SHARE:
        yield FOREIGN, "memory in use by no known process"
    recent = [
        other.utilization
        for sample in node.samples
        for other in sample.gpus
        if other.index == gpu.index and other.utilization is not None
    ]
    runs = [user.run_id for user in gpu.users if user.run_id in working]
    if runs and len(recent) >= MIN_SAMPLES and max(recent) < IDLE_PERCENT:
        yield IDLE, f"idle in {_clean(runs[0])}"


def _is_in_use(gpu: GpuSample) -> bool:
    return bool(gpu.users or gpu.utilization or _memory_share(gpu) > IN_USE_SHARE)


def _memory_share(gpu: GpuSample) -> float:
    return (gpu.memory_used or 0) / gpu.memory_total if gpu.memory_total else 0.0


def _clean(text: str) -> str:
    """Return a host's word in short, and such that no terminal acts upon it."""
    return printable(text[:MAX_TEXT])
