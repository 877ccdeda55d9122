"""View of a cluster: a table of nodes, the unusual first, with their GPUs and runs."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group
from rich.text import Text

from runner.core.errors import fold_names
from runner.core.wire.codec import encode
from runner.core.wire.run_info import GpuSample, Sample
from runner.core.wire.text import format_ranges, natural_key, printable
from runner.ui.layout import COLUMN_GAP, columns_that_fit, group_names
from runner.ui.reports.run_table import Row, table_of_runs

VIEW_VERSION = 2

LEVELS = "\N{LOWER ONE EIGHTH BLOCK}▂▃▄▅▆▇█"
MAX_LEVELS = 16  # GPUs of a node that have a block of their own
MAX_TEXT = 120  # characters of a host's word

COLUMNS = ("NODE", "GPUS", "USE", "GPU MEM", "TEMP", "CPU", "RAM", "RUN")
AT_RIGHT = ("USE", "GPU MEM", "TEMP", "CPU", "RAM")
GIVING_WAY = ("RAM", "CPU", "TEMP", "GPU MEM")
"""Columns that are left out where there is no room for all, the first one first."""

HOT_C = 85.0
IN_USE_SHARE = 0.05  # of the memory of a GPU; the driver itself takes less
BUSY_PERCENT = 50
SILENT = 0
BROKEN = 1
THROTTLED = 2
HOT = 3
FOREIGN = 4
USUAL = 9
"""How much something unusual matters; the smaller, the more."""


@dataclass(frozen=True)
class NodeView:
    name: str
    sample: Sample | None = None  # of now
    silence: str = ""  # why it does not answer
    hint: str = ""  # what to do about it
    runs: tuple[str, ...] = ()  # the active ones that it takes part in

    @property
    def gpus(self) -> tuple[GpuSample, ...]:
        return self.sample.gpus if self.sample else ()


@dataclass(frozen=True)
class ClusterView:
    title: str  # the cluster's name
    nodes: tuple[NodeView, ...] = ()
    runs: tuple[Row, ...] = ()

    def as_data(self) -> Mapping[str, Any]:
        return {
            "v": VIEW_VERSION,
            "time": round(time.time(), 3),
            "nodes": {node.name: encode(node.sample) for node in self.nodes if node.sample},
            "runs": [encode(row) for row in self.runs],
            "unreachable": {node.name: node.silence for node in self.nodes if node.silence},
        }


def render_view(view: ClusterView, width: int, most: int | None = None) -> Group:
    """Return a line for each node, the unusual first, what is unusual, and a line for each run.

    Of more than `most` lines, those of usual nodes are left out and counted.
    """
    unusual = {node.name: [*_unusual(node)] for node in view.nodes}
    worst = {name: min(found, default=(USUAL, ""))[0] for name, found in unusual.items()}
    nodes = sorted(view.nodes, key=lambda node: (worst[node.name], natural_key(node.name)))
    told = group_names((node.name, each) for node in nodes for each in unusual[node.name])
    hints = {node.name: node.hint if most is None else "" for node in nodes}
    below = []
    for (severity, text), names in sorted(told.items(), key=lambda each: each[0][0]):
        title = f"{_clean(fold_names(names))}: "
        style = "red" if severity <= BROKEN else "yellow"
        line = Text.assemble(title, (text, style), no_wrap=most is not None, overflow="ellipsis")
        below.append(line)
        for name in names if severity == SILENT else ():
            below += [Text(f"    {printable(each)}", "dim") for each in hints[name].splitlines()]
    runs = [Text(line, no_wrap=True) for line in table_of_runs(view.runs, width)]
    shown = nodes
    if most is not None:
        runs = runs[: most // 3]
        below = below[: most // 3]
        room = most - 2 - len(below) - len(runs) - bool(runs)
        shown = nodes if len(nodes) <= room else nodes[: max(1, room - 1)]
    lines = [_header(view, width), *_table([_node_cells(node) for node in shown], width)]
    if len(shown) < len(nodes):
        lines.append(Text(f"and {len(nodes) - len(shown)} more nodes", "dim"))
    lines += below
    lines += [Text(), *runs] if runs else []
    return Group(*lines)


def _header(view: ClusterView, width: int) -> Text:
    gpus = [gpu for node in view.nodes for gpu in node.gpus]
    answering = sum(node.sample is not None for node in view.nodes)
    header = Text.assemble((_clean(view.title), "bold"), no_wrap=True, overflow="ellipsis")
    hosts = f"  {answering} of {len(view.nodes)} nodes answer"
    header.append(hosts, "red" if answering < len(view.nodes) else "")
    if gpus:
        header.append(f"  {sum(map(_is_in_use, gpus))} of {len(gpus)} GPUs in use")
        header.append(f"  mean use {_mean_use(gpus)}")
    clock = time.strftime("  %H:%M:%S")
    if header.cell_len + len(clock) <= width:
        header.append(clock, "dim")
    return header


def _table(rows: Sequence[Mapping[str, Text]], width: int) -> list[Text]:
    """Return a line of headers and one per row, cut at its end; what no row has is no column."""
    widths = {
        name: max(len(name), *(row[name].cell_len for row in rows if name in row))
        for name in COLUMNS
        if any(row.get(name) for row in rows)
    }
    shown = columns_that_fit(widths, GIVING_WAY, width)
    lines = []
    for row in ({name: Text(name, "dim") for name in shown}, *rows):
        cells = []
        for name in shown:
            cell = row.get(name, Text()).copy()
            cell.align("right" if name in AT_RIGHT else "left", widths[name])
            cells.append(cell)
        line = Text(" " * COLUMN_GAP, no_wrap=True, overflow="ellipsis").join(cells)
        line.rstrip()
        lines.append(line)
    return lines


def _node_cells(node: NodeView) -> dict[str, Text]:
    cells = {"NODE": Text(_clean(node.name))}
    if node.silence:
        cells["NODE"].stylize("red")
    sample = node.sample
    known = [gpu for gpu in node.gpus if gpu.memory_used is not None and gpu.memory_total]
    if node.gpus:
        cells["GPUS"] = _levels(node.gpus)
        cells["USE"] = Text(_mean_use(node.gpus))
    if known:
        used = sum(gpu.memory_used or 0 for gpu in known) / 1e9
        total = sum(gpu.memory_total or 0 for gpu in known) / 1e9
        cells["GPU MEM"] = Text(f"{used:.0f}/{total:.0f} GB")
    if (hottest := _hottest(node.gpus)) is not None:
        cells["TEMP"] = Text(f"{hottest:.0f} °C", "red" if hottest >= HOT_C else "")
    if sample and sample.cpu is not None:
        cells["CPU"] = Text(f"{sample.cpu:.0f}%")
    if sample and sample.memory_used is not None and sample.memory_total:
        cells["RAM"] = Text(f"{100 * sample.memory_used / sample.memory_total:.0f}%")
    users = (user for gpu in node.gpus for user in gpu.users)
    runs = [*dict.fromkeys([*node.runs, *(user.run_id for user in users if user.run_id)])]
    if runs:
        more = f" +{len(runs) - 1}" if len(runs) > 1 else ""
        cells["RUN"] = Text(f"{_clean(runs[0])}{more}")
    return cells


def _mean_use(gpus: Iterable[GpuSample]) -> str:
    rates = [gpu.utilization for gpu in gpus if gpu.utilization is not None]
    return f"{sum(rates) / len(rates):.0f}%" if rates else ""


def _hottest(gpus: Iterable[GpuSample]) -> float | None:
    return max((gpu.temperature_c for gpu in gpus if gpu.temperature_c is not None), default=None)


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


def _unusual(node: NodeView) -> Iterator[tuple[int, str]]:
    """Yield how much something unusual matters, 0 the most, and what it is."""
    if node.silence:
        yield SILENT, f"not answering: {_clean(node.silence)}"
    if node.sample and node.sample.gpu_error:
        yield BROKEN, _clean(node.sample.gpu_error)
    found: dict[tuple[tuple[int, str], ...], list[GpuSample]] = {}
    for gpu in node.gpus:
        if problems := tuple(_gpu_problems(gpu)):
            found.setdefault(problems, []).append(gpu)
    for problems, gpus in found.items():
        texts = []
        for severity, text in problems:
            degrees = f" ({_hottest(gpus):.0f} °C)" if severity == HOT else ""
            texts.append(f"{text}{degrees}")
        indices = sorted(gpu.index for gpu in gpus)
        worst = min(severity for severity, _ in problems)
        yield worst, f"{format_ranges(indices, 'GPU')} {', '.join(texts)}"


def _gpu_problems(gpu: GpuSample) -> Iterator[tuple[int, str]]:
    if gpu.error:
        yield BROKEN, f"error: {_clean(gpu.error)}"
    if gpu.temperature_c is not None and gpu.temperature_c >= HOT_C:
        yield HOT, "hot"
    if reasons := [_clean(reason) for reason in gpu.throttled[:3] if reason != "power"]:
        yield THROTTLED, f"throttled ({', '.join(reasons)})"
    if foreign := next((user for user in gpu.users if not user.run_id), None):
        program = foreign.command.rpartition("/")[2]
        # Of a process that has just ended, or of a container, neither may be known.
        owner = ":".join(word for word in (foreign.user, program) if word)
        yield FOREIGN, f"used by {_clean(owner) or 'a process'}, outside of runs"
    elif not gpu.users and _memory_share(gpu) > IN_USE_SHARE:
        yield FOREIGN, "memory in use by no known process"


def _is_in_use(gpu: GpuSample) -> bool:
    return bool(gpu.users or gpu.utilization or _memory_share(gpu) > IN_USE_SHARE)


def _memory_share(gpu: GpuSample) -> float:
    return (gpu.memory_used or 0) / gpu.memory_total if gpu.memory_total else 0.0


def _clean(text: str) -> str:
    """Return a host's word in short, and such that no terminal acts upon it."""
    return printable(text[:MAX_TEXT])
