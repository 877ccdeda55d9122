"""Wait helpers of the tests: each ends with the event it waits for, or fails at its deadline."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from tests.lab.inspecting import events_by_node

if TYPE_CHECKING:
    from tests.lab.lab import Lab

PATIENCE = float(os.environ.get("PATIENCE") or 4)
"""How much longer than on an idle machine anything may take: a factor of every deadline.

A deadline is there for what hangs. It is no claim about speed, and no test passes by reaching it.
"""

SHORTEST_PAUSE_S = 0.005
LONGEST_PAUSE_S = 0.1


class TimedOut(AssertionError):
    """A condition did not become true before the deadline."""


def wait_until(
    condition: Callable[[], object],
    what: str,
    timeout: float = 30,
    *,
    detail: Callable[[], object] | None = None,
) -> None:
    """Return once `condition()` is true, or raise TimedOut after `timeout` × `PATIENCE` seconds.

    The pauses between two looks grow, since a look often starts a program. The error shows `what`
    was waited for, and what `detail` returns.
    """
    deadline = time.monotonic() + timeout * PATIENCE
    pause = SHORTEST_PAUSE_S
    while not condition():
        if time.monotonic() > deadline:
            shown = f"\n{detail()}" if detail else ""
            raise TimedOut(f"waited {timeout * PATIENCE:g} s for {what}{shown}")
        time.sleep(pause)
        pause = min(pause * 1.3, LONGEST_PAUSE_S)


def wait_until_idle(lab: Lab, timeout: float = 30) -> None:
    assert lab.wait_idle(timeout) == {}


def wait_until_ended(
    lab: Lab, run_id: str, nodes: Iterable[str] = ()
) -> Iterator[tuple[str, list[dict[str, object]]]]:
    """Wait for the last event of a run on some hosts, or all; return their names and events."""
    found: list[tuple[str, list[dict[str, object]]]] = []

    def ended() -> bool:
        found[:] = events_by_node(lab, run_id, nodes)
        return all(events and events[-1]["kind"] == "ended" for _, events in found)

    wait_until(ended, f"the end of {run_id} on every host", 40, detail=lambda: found)
    return iter(found)
