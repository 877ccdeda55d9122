"""Rendering of the status area with Rich, which is imported for the first row."""

from __future__ import annotations

import io
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from runner.core.text import counted
from runner.ui.console.colour import TIMES_SIGN
from runner.ui.console.dedup import Source
from runner.ui.layout import fold_names

BAD_STATES = ("lost", "failed", "not reached", "unreachable", "refused")
"""The prefixes of states to highlight."""

MAX_NAMES_CELLS = 24
"""The width of nodes' names in a row of the area."""


class Row(NamedTuple):
    """A line of the area as it is written, and how many cells it takes."""

    text: bytes
    cells: int


def compose_rows(
    phase: str,
    elapsed_s: float,
    groups: list[tuple[list[str], str]],
    progress: list[tuple[Source, str]],
    height: int,
) -> list[Text]:
    """Return the area's rows: the phase, the states, and the unfinished lines that fit.

    A state shared by all nodes stands beside the phase. Lines get at least half of the rows.
    """
    states = [(fold_names(nodes), state) for nodes, state in groups]
    head = Text.assemble((phase or "running", "bold"), (f"  {_format_elapsed(elapsed_s)}", "dim"))
    if len(states) == 1 or height == 1:
        for names, state in states[:1]:
            head.append(f"  {names}" if state == phase else f"  {names} {state}")
        states = []
    room = height - 1
    states_room = max(room - _distinct_count(progress), room - room // 2)
    texts = [head, *_state_rows(states, states_room)]
    return texts + _progress_rows(progress, height - len(texts))


def _distinct_count(progress: list[tuple[Source, str]]) -> int:
    return len({text for _, text in progress})


def _state_rows(states: list[tuple[str, str]], room: int) -> list[Text]:
    hidden_count = 0
    if len(states) > room:
        hidden_count = len(states) - max(0, room - 1)
        states = states[: len(states) - hidden_count]
    width = min(max((cell_len(names) for names, _ in states), default=0), MAX_NAMES_CELLS)
    rows = []
    for names, state in states:
        row = Text(names)
        row.truncate(width, overflow="ellipsis", pad=True)
        is_bad = state.startswith(BAD_STATES)
        rows.append(Text.assemble("  ", row, "  ", (state, "red" if is_bad else "")))
    if hidden_count and room > 0:
        rows.append(Text(f"  … and {counted(hidden_count, 'more state')}", "dim"))
    return rows


def _progress_rows(progress: list[tuple[Source, str]], room: int) -> list[Text]:
    """Return a row per rank; if these do not fit, per text, or else per node."""
    if room <= 0 or not progress:
        return []
    groups = [([source], text) for source, text in progress]
    if len(groups) > room:
        groups = _group_lines(progress, by_text=True)
    if len(groups) > room:
        groups = _group_lines(progress, by_text=False)
    hidden_count = 0
    if len(groups) > room:
        shown = max(1, room - 1)
        hidden_count = sum(len(sources) for sources, _ in groups[shown:])
        groups = groups[:shown]
    labels = [_sources_label(sources) for sources, _ in groups]
    width = max(map(cell_len, labels))
    rows = [
        Text.assemble((f"{label:{width}} ", "dim"), text)
        for label, (_, text) in zip(labels, groups, strict=True)
    ]
    if hidden_count and len(rows) < room:
        rows.append(Text(f"… and {counted(hidden_count, 'more rank')}", "dim"))
    return rows


def _group_lines(
    progress: list[tuple[Source, str]], *, by_text: bool
) -> list[tuple[list[Source], str]]:
    """Group equal lines, or else those of a node, of which the first rank's is shown."""
    groups: dict[str, tuple[list[Source], str]] = {}
    for source, text in progress:
        groups.setdefault(text if by_text else source.node, ([], text))[0].append(source)
    return list(groups.values())


def _sources_label(sources: list[Source]) -> str:
    if len(sources) == 1:
        return f"[{sources[0].node}:{sources[0].rank}]"
    nodes = tuple(dict.fromkeys(source.node for source in sources))
    return f"[{TIMES_SIGN}{len(sources)} {fold_names(nodes)}]"


def render_rows(texts: list[Text], width: int, *, colour: bool) -> list[Row]:
    """Return rows as bytes for a terminal of that width."""
    console = Console(
        file=io.StringIO(),
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        legacy_windows=False,
    )
    rows = []
    for text in texts:
        text.truncate(width, overflow="ellipsis")
        with console.capture() as capture:
            console.print(text, end="", no_wrap=True, crop=True, highlight=False, soft_wrap=False)
        rows.append(Row(capture.get().encode(errors="replace"), text.cell_len))
    return rows


def _format_elapsed(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} m"
    return f"{minutes} m {rest:02} s" if minutes else f"{rest} s"
