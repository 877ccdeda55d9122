"""Waiting for many hosts at once: what each says, in turn, and which of them says nothing."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable, Mapping
from typing import NoReturn

from runner.control.rpc.session import HostSession, Inbox
from runner.core.errors import Interrupted
from runner.core.protocol.frames import Frame

TICK_S = 0.1
PING_S = 2.0


def raise_interrupted(signum: int) -> NoReturn:
    """Take a signal for the end of the waiting."""
    raise Interrupted(128 + signum, "interrupted")


def wait_for(
    inbox: Inbox,
    pending: Callable[[], Mapping[str, HostSession]],
    lost_s: float,
    on_frame: Callable[[str, Frame], None],
    on_lost: Callable[[str, str], None],
    on_signal: Callable[[int], None] = raise_interrupted,
) -> None:
    """Return when no host is waited for any more; each is told now and then that we are here.

    Args:
        inbox: Where all sessions put what they hear.
        pending: Returns the hosts that are waited for, by node.
        lost_s: How long one of them may be silent.
        on_frame: Takes what one of them says.
        on_lost: Takes one of which nothing more will come, and why.
        on_signal: Takes the number of a signal.

    Raises:
        Interrupted: By a signal, unless `on_signal` does something else with it.
    """
    next_check = 0.0
    while sessions := pending():
        with contextlib.suppress(queue.Empty):
            session, frame = inbox.get(timeout=TICK_S)
            if session is None:
                if frame.kind == "signal":  # an answer may still come to a question that is over
                    on_signal(int(frame.data["signal"]))
            elif sessions.get(name := session.node.name) is session:
                if frame.kind == "closed":
                    on_lost(name, f"the connection to it broke: {frame.data['reason']}")
                else:
                    on_frame(name, frame)
        now = time.monotonic()
        if now >= next_check:  # however much they say
            next_check = now + PING_S
            for name, session in pending().items():
                if session.idle_s > lost_s:
                    on_lost(name, f"nothing was heard from it for {session.idle_s:.0f} s")
                elif session.closed and inbox.empty():
                    on_lost(name, "the connection to it is gone")
                else:
                    session.request("ping")
