"""How the live area looks. Rich is imported here and nowhere else, for the first picture."""

from __future__ import annotations

import io

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from runner.ui.console.dedup import Source
from runner.ui.console.status_area import Row
from runner.ui.node_names import TIMES, folded

BAD = ("lost", "failed", "not reached", "unreachable", "refused")
"""States that begin so are bad news."""

NAMES = 24
"""Cells that names of nodes take in a row of the area."""


def compose(
    phase: str,
    lasted: float,
    groups: list[tuple[list[str], str]],
    live: list[tuple[Source, str]],
    height: int,
) -> list[Text]:
    """Return the area's rows: the phase, the states, and lines as there is room.

    One state of all stands beside the phase. Lines get what the states leave, and half at least.
    """
    states = [(folded(tuple(nodes)), state) for nodes, state in groups]
    head = Text.assemble((phase or "running", "bold"), (f"  {_elapsed(lasted)}", "dim"))
    if len(states) == 1 or height == 1:
        for names, state in states[:1]:
            head.append(f"  {names}" if state == phase else f"  {names} {state}")
        states = []
    room = height - 1
    for_states = max(room - _wanted(live), room - room // 2)
    texts = [head, *_state_rows(states, for_states)]
    return texts + _live_rows(live, height - len(texts))


def _wanted(live: list[tuple[Source, str]]) -> int:
    return len({text for _, text in live})


def _state_rows(states: list[tuple[str, str]], room: int) -> list[Text]:
    rest = 0
    if len(states) > room:
        rest = len(states) - max(0, room - 1)
        states = states[: len(states) - rest]
    width = min(max((cell_len(names) for names, _ in states), default=0), NAMES)
    rows = []
    for names, state in states:
        row = Text(names)
        row.truncate(width, overflow="ellipsis", pad=True)
        bad = state.startswith(BAD)
        rows.append(Text.assemble("  ", row, "  ", (state, "red" if bad else "")))
    if rest and room > 0:
        rows.append(Text(f"  … and {rest} more {'state' if rest == 1 else 'states'}", "dim"))
    return rows


def _live_rows(live: list[tuple[Source, str]], room: int) -> list[Text]:
    """Return a row for each rank; where that is too much, for each text, or for each node."""
    if room <= 0 or not live:
        return []
    groups = [([source], text) for source, text in live]
    if len(groups) > room:
        groups = _grouped(live, by_text=True)
    if len(groups) > room:
        groups = _grouped(live, by_text=False)
    rest = 0
    if len(groups) > room:
        shown = max(1, room - 1)
        rest = sum(len(sources) for sources, _ in groups[shown:])
        groups = groups[:shown]
    heads = [_who(sources) for sources, _ in groups]
    width = max(map(cell_len, heads))
    rows = [
        Text.assemble((f"{head:{width}} ", "dim"), text)
        for head, (_, text) in zip(heads, groups, strict=True)
    ]
    if rest and len(rows) < room:
        rows.append(Text(f"… and {rest} more {'rank' if rest == 1 else 'ranks'}", "dim"))
    return rows


def _grouped(live: list[tuple[Source, str]], *, by_text: bool) -> list[tuple[list[Source], str]]:
    """Group lines that are equal, or else those of a node, for which its first rank speaks."""
    groups: dict[str, tuple[list[Source], str]] = {}
    for source, text in live:
        groups.setdefault(text if by_text else source.node, ([], text))[0].append(source)
    return list(groups.values())


def _who(sources: list[Source]) -> str:
    if len(sources) == 1:
        return f"[{sources[0].node}:{sources[0].rank}]"
    return f"[{TIMES}{len(sources)} {folded(tuple(dict.fromkeys(s.node for s in sources)))}]"


def rendered(texts: list[Text], width: int, *, colour: bool) -> list[Row]:
    """Return rows as a terminal of that width takes them."""
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


def _elapsed(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} m"
    return f"{minutes} m {rest:02} s" if minutes else f"{rest} s"
