"""Waiting for many hosts at once: what each says, in turn, and which of them says nothing."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Mapping
from typing import NoReturn

from runner.control.rpc.session import Inbox, Session
from runner.core.errors import Interrupted
from runner.core.protocol.frames import Frame

TICK_S = 0.1
PING_S = 2.0


def end(signum: int) -> NoReturn:
    """Take a signal for the end of the waiting."""
    raise Interrupted(128 + signum, "interrupted")


def listen(
    inbox: Inbox,
    waiting: Callable[[], Mapping[str, Session]],
    lost_s: float,
    take: Callable[[str, Frame], None],
    lose: Callable[[str, str], None],
    interrupt: Callable[[int], None] = end,
) -> None:
    """Return when no host is waited for any more; each is told now and then that we are here.

    Args:
        inbox: Where all sessions put what they hear.
        waiting: Returns the hosts that are waited for, by node.
        lost_s: How long one of them may be silent.
        take: Takes what one of them says.
        lose: Takes one of which nothing more will come, and why.
        interrupt: Takes the number of a signal.

    Raises:
        Interrupted: By a signal, unless `interrupt` does something else with it.
    """
    next_look = 0.0
    while hosts := waiting():
        with contextlib.suppress(queue.Empty):
            session, frame = inbox.get(timeout=TICK_S)
            if session is None:
                if frame.kind == "signal":  # an answer may still come to a question that is over
                    interrupt(int(frame.data["signal"]))
            elif hosts.get(name := session.node.name) is session:
                if frame.kind == "closed":
                    lose(name, f"the connection to it broke: {frame.data['reason']}")
                else:
                    take(name, frame)
        now = time.monotonic()
        if now >= next_look:  # however much they say
            next_look = now + PING_S
            for name, session in waiting().items():
                if session.silence > lost_s:
                    lose(name, f"nothing was heard from it for {session.silence:.0f} s")
                elif session.closed and inbox.empty():
                    lose(name, "the connection to it is gone")
                else:
                    session.request("ping")
