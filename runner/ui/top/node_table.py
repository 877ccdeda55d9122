"""Table of nodes: one row per node, or one per GPU, in the order that is asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rich.text import Text

from runner.core.model.samples import GpuSample, Sample
from runner.ui.console.progress_bar import DONE, LEFT
from runner.ui.top.anomalies import (
    HOT_C,
    Anomaly,
    Severity,
    describe_anomalies,
    find_anomalies,
    severity_of,
)
from runner.ui.top.cells import clean, user_text
from runner.ui.top.cluster_view import (
    ClusterView,
    HostState,
    NodeView,
    is_in_use,
    mean_utilization,
    memory_share,
)
from runner.ui.top.columns import Column, shorten, table_lines

SORTS = ("unusual", "name", "use", "memory")
LEVELS = "\N{LOWER ONE EIGHTH BLOCK}▂▃▄▅▆▇█"
ASCII_LEVELS = "0123456789"
UNKNOWN_LEVEL = "?"
MAX_LEVELS = 16  # GPUs of a node that have a block of their own
BUSY_PERCENT, HALF_PERCENT = 60, 10
BAR_CELLS, ASCII_BAR = 8, ("#", ".")
MAX_WHO = 3
GB = 1e9
WARNING, ERROR, QUIET = "yellow", "red", "dim"
SPANNED_GAP = "  "


@dataclass(frozen=True)
class NodeRow:
    """A row: a node, or one GPU of it."""

    node: NodeView
    gpus: tuple[GpuSample, ...]  # that the row is about
    anomalies: tuple[Anomaly, ...]
    is_first: bool = True  # of its node
    is_gpu: bool = False


def ordered_rows(
    view: ClusterView, sort: str, *, reverse: bool = False, by_gpu: bool = False
) -> list[NodeRow]:
    """Return the rows in an order of `SORTS`; nodes that are equal in it, by their names."""
    anomalies = find_anomalies(view.nodes)
    nodes = sorted(view.nodes, key=lambda node: _natural(node.name))
    keys: dict[str, Callable[[NodeView], float]] = {
        "unusual": lambda node: severity_of(anomalies[node.name]),
        "use": lambda node: -_known(mean_utilization(_gpus(node))),
        "memory": lambda node: -sum(map(memory_share, _gpus(node))),
    }
    if sort in keys:
        nodes.sort(key=keys[sort])
    if reverse:
        nodes.reverse()
    return [row for node in nodes for row in _rows(node, anomalies[node.name], by_gpu=by_gpu)]


def node_lines(
    rows: Sequence[NodeRow], width: int, wanted: dict[str, int], *, ascii_only: bool = False
) -> list[Text]:
    """Return the lines of the headers and of each row; for `wanted` see `fitting_widths`."""
    lines = table_lines(_columns(rows, width, ascii_only=ascii_only), width, wanted)
    name_width = max((len(row.node.name) for row in rows), default=0)
    for at, row in enumerate(rows, 1):
        if row.node.sample is None:
            lines[at] = _spanned(row, min(name_width, max(8, width // 3)), width)
    return lines


def _spanned(row: NodeRow, name_width: int, width: int) -> Text:
    """Return the line of a node that does not answer: the reason needs the room."""
    is_silent = row.node.state is HostState.SILENT
    text = describe_anomalies(row.anomalies) if is_silent else row.node.state.value
    name = shorten(Text(clean(row.node.name)), name_width)
    name.pad_right(name_width - name.cell_len)
    style = ERROR if is_silent else QUIET
    return shorten(Text.assemble(name, SPANNED_GAP, (text, style)), width)


def _rows(node: NodeView, anomalies: Sequence[Anomaly], *, by_gpu: bool) -> list[NodeRow]:
    if not by_gpu or not _gpus(node):
        return [NodeRow(node, _gpus(node), tuple(anomalies))]
    rows = []
    for at, gpu in enumerate(_gpus(node)):
        own = tuple(
            Anomaly(anomaly.severity, anomaly.text)
            for anomaly in anomalies
            if gpu.index in anomaly.gpus or (not anomaly.gpus and at == 0)
        )
        rows.append(NodeRow(node, (gpu,), own, is_first=at == 0, is_gpu=True))
    return rows


Cell = Callable[[NodeRow], "Text | str"]


def _columns(rows: Sequence[NodeRow], width: int, *, ascii_only: bool) -> list[Column]:
    def cells(cell: Cell) -> list[Text]:
        return [_as_text(cell(row)) if row.node.sample else Text() for row in rows]

    def number(header: str, cell: Cell, priority: int) -> Column:
        return Column(header, cells(cell), priority, is_number=True)

    def host(header: str, cell: Callable[[Sample], str], priority: int) -> Column:
        def of_host(row: NodeRow) -> str:  # of several rows, the first one has it
            return cell(row.node.sample) if row.node.sample and row.is_first else ""

        return number(header, of_host, priority)

    def load(row: NodeRow) -> Text:
        bar = _gpu_bar if row.is_gpu else _levels
        return bar(row.gpus, ascii_only=ascii_only)

    is_by_gpu = any(row.is_gpu for row in rows)
    names = [Text(clean(row.node.name) if row.is_first else "") for row in rows]
    return [
        Column("NODE", names, 0, least=8),
        *([number("GPU", _gpu_index, 1)] if is_by_gpu else []),
        Column("LOAD" if is_by_gpu else "GPUS", cells(load), 1),
        number("USE", lambda row: _percent(mean_utilization(row.gpus)), 2),
        number("GPU MEM", _gpu_memory, 5),
        number("POWER", _power, 8),
        number("TEMP", _temperature, 6),
        host("CPU", lambda sample: _percent(sample.cpu), 7),
        host("RAM", _ram, 9),
        host("NET IN/OUT B/s", lambda each: _rates(each.net_received, each.net_sent), 10),
        host("DISK R/W B/s", lambda each: _rates(each.disk_read, each.disk_written), 11),
        Column("WHO", cells(_who), 4, least=10, good=max(12, width // 5)),
        Column("NOTE", cells(_note), 3, least=12, good=max(14, width // 3)),
    ]


def _gpu_index(row: NodeRow) -> str:
    return str(row.gpus[0].index) if row.is_gpu else ""


def _as_text(cell: Text | str) -> Text:
    return Text(cell) if isinstance(cell, str) else cell


def _gpus(node: NodeView) -> tuple[GpuSample, ...]:
    return node.sample.gpus if node.sample else ()


def _natural(name: str) -> list[tuple[int, int | str]]:
    """Return a key by which gpu2 comes before gpu10."""
    parts = re.findall(r"\d+|\D+", name)
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in parts]


def _known(percent: float | None) -> float:
    return -1.0 if percent is None else percent


def _levels(gpus: Sequence[GpuSample], *, ascii_only: bool) -> Text:
    text, levels = Text(), ASCII_LEVELS if ascii_only else LEVELS
    for gpu in gpus[:MAX_LEVELS]:
        if gpu.utilization is None:
            text.append("!" if gpu.error else UNKNOWN_LEVEL, ERROR if gpu.error else QUIET)
        else:
            level = min(len(levels) - 1, gpu.utilization * len(levels) // 100)
            text.append(levels[level], _use_style(gpu))
    if len(gpus) > MAX_LEVELS:
        text.append(f"+{len(gpus) - MAX_LEVELS}", QUIET)
    return text


def _gpu_bar(gpus: Sequence[GpuSample], *, ascii_only: bool) -> Text:
    gpu, (done, left) = gpus[0], ASCII_BAR if ascii_only else (DONE, LEFT)
    if gpu.utilization is None:
        return Text("error" if gpu.error else UNKNOWN_LEVEL, ERROR if gpu.error else QUIET)
    cells = round(gpu.utilization * BAR_CELLS / 100)
    return Text(done * cells, _use_style(gpu)).append(left * (BAR_CELLS - cells), QUIET)


def _use_style(gpu: GpuSample) -> str:
    if not is_in_use(gpu):
        return QUIET
    percent = gpu.utilization or 0
    return "green" if percent >= BUSY_PERCENT else "cyan" if percent >= HALF_PERCENT else WARNING


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}%"


def _gpu_memory(row: NodeRow) -> str:
    known = [gpu for gpu in row.gpus if gpu.memory_used is not None and gpu.memory_total]
    if not known:
        return "-"
    used = sum(gpu.memory_used or 0 for gpu in known) / GB
    total = sum(gpu.memory_total or 0 for gpu in known) / GB
    return f"{used:.0f}/{total:.0f} GB"


def _power(row: NodeRow) -> str:
    known = [gpu.power_w for gpu in row.gpus if gpu.power_w is not None]
    return f"{sum(known):,.0f} W" if known else "-"


def _temperature(row: NodeRow) -> Text:
    hottest = max((g.temperature_c for g in row.gpus if g.temperature_c is not None), default=None)
    if hottest is None:
        return Text("-")
    return Text(f"{hottest:.0f} C", ERROR if hottest >= HOT_C else "")


def _ram(sample: Sample) -> str:
    used, total = sample.memory_used, sample.memory_total
    return f"{100 * used / total:.0f}%" if used is not None and total else "-"


def _rates(first: float | None, second: float | None) -> str:
    if first is None and second is None:
        return "-"
    return "/".join("?" if rate is None else short_size(rate) for rate in (first, second))


def short_size(size: float) -> str:
    """Return a number of bytes in at most four characters: "950", "12k", "1.5G"."""
    for unit in ("", "k", "M", "G", "T"):
        if size < 999.5:  # noqa: PLR2004 (which is 1000 in three digits)
            return f"{size:.1f}{unit}" if unit and size < 9.95 else f"{size:.0f}{unit}"  # noqa: PLR2004
        size /= 1000
    return f"{size:.0f}P"


def _who(row: NodeRow) -> Text:
    """Return the runs on these GPUs, or else on the node, and the other users of the GPUs."""
    users = [user for gpu in row.gpus for user in gpu.users]
    runs = [user.run_id for user in users if user.run_id]
    if not row.is_gpu:
        runs += row.node.runs
    others = [user_text(user.user, user.command) for user in users if not user.run_id]
    names = [*dict.fromkeys([*map(clean, runs), *others])]
    more = f" +{len(names) - MAX_WHO}" if len(names) > MAX_WHO else ""
    return Text(", ".join(names[:MAX_WHO]) + more, "" if runs else WARNING)


def _note(row: NodeRow) -> Text:
    style = ERROR if severity_of(row.anomalies) <= Severity.BROKEN else WARNING
    return Text(describe_anomalies(row.anomalies), style)


def summary(view: ClusterView) -> Mapping[str, str]:
    """Return what the header says of all nodes."""
    gpus = tuple(gpu for node in view.nodes for gpu in _gpus(node))
    mean = mean_utilization(gpus)
    used = sum(map(is_in_use, gpus))
    return {
        "hosts": f"{len(view.answering)} of {len(view.nodes)} hosts answer",
        "gpus": f"{used} of {len(gpus)} GPUs in use" if gpus else "no GPUs",
        "use": "" if mean is None else f"mean use {mean:.0f}%",
    }
