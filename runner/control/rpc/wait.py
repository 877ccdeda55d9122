"""Wait loop over the controller's inbox, and the broadcast on it: one request to every host.

The loop handles frames, silence and deadlines of hosts, and signals.
"""

from __future__ import annotations

import contextlib
import math
import queue
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from runner.control.rpc.session import HostSession, Inbox
from runner.core.errors import Interrupted, NotReady, Problem
from runner.core.wire.codec import Frame, FrameError
from runner.core.wire.timing import ANSWER_TIMEOUT_S, DISK_TIMEOUT_S, PING_S, WORK_TIMEOUT_S

TICK_S = 0.1
SLOW_S = 30.0
"""How long a host may not answer before that is shown."""

NO_ANSWER = f"it answers pings and nothing else for {ANSWER_TIMEOUT_S:g} s; its disk may hang"
RETRY_HINT = "the other hosts did as asked; repeat the command when this one is well"


class WaitLoop:
    """An exchange with many hosts; a subclass names those it waits for and takes their frames.

    Every connected host is pinged, finished or not: an agent stops a run it has lost touch with.
    Sessions may be added while waiting; a host that is waited for may be silent for `lost_s`, and
    may answer nothing but pings for `ANSWER_TIMEOUT_S`. `show` takes (node, state in a few words)
    whenever that changes.
    """

    interrupted_message = "interrupted"
    ping_interval_s = PING_S
    owes_answers = True  # else a node may be silent up to its deadline
    _deadline = math.inf

    def __init__(
        self,
        sessions: Mapping[str, HostSession],
        inbox: Inbox,
        lost_s: float = math.inf,
        show: Callable[[str, str], None] = lambda *_: None,
    ) -> None:
        self.sessions = sessions
        self.inbox = inbox
        self.lost_s = lost_s
        self._show = show
        self._answered_at: dict[str, float] = {}
        self._disk_wait_s: dict[str, float] = {}  # as reported
        self._worked_at: dict[str, float] = {}  # when a host reported progress, or was sent a lot

    def _pending(self) -> Collection[str]:
        raise NotImplementedError

    def _is_finished(self) -> bool:
        return not self._pending()

    def _tick(self) -> float:
        """Do what is due; return how many seconds to wait for the next frame."""
        return TICK_S

    def _deadline_of(self, name: str) -> float:
        """Return when (monotonic) to stop waiting for a node."""
        answered_at = self._answered_at.get(name, math.inf)
        worked_at = self._worked_at.get(name, math.inf)
        return min(self._deadline, worked_at + ANSWER_TIMEOUT_S, answered_at + WORK_TIMEOUT_S)

    def _owes_answer(self, name: str) -> bool:
        del name
        return self.owes_answers

    def _on_frame(self, name: str, frame: Frame) -> bool:
        """Take a frame of a pending node; return whether it is an answer that was owed."""
        del name, frame
        return False

    def _on_closed(self, session: HostSession, reason: str) -> None:
        self._on_lost(session.node.name, f"the connection to it broke: {reason}")

    def _on_late(self, name: str) -> None:
        self.sessions[name].close()  # nobody is to wait for it again
        self._on_lost(name, NO_ANSWER)

    def _on_lost(self, name: str, reason: str) -> None:
        """Handle a pending node that will say nothing more."""

    def on_signal(self, signum: int) -> None:
        """Handle a signal to the controller: raise Interrupted, or what a subclass does."""
        raise Interrupted(128 + signum, self.interrupted_message)

    def wait(self) -> None:
        """Return when no host is waited for any more; raise Interrupted by a signal."""
        next_ping = next_check = 0.0
        while True:
            timeout_s = self._tick()
            if self._is_finished():
                return
            with contextlib.suppress(queue.Empty):
                self._take(*self.inbox.get(timeout=timeout_s))
            now = time.monotonic()
            if now >= next_check:
                next_check = now + TICK_S
                self._check_progress(now)
                for name in [name for name in self._pending() if now >= self._deadline_of(name)]:
                    self._on_late(name)
            if now >= next_ping:  # however busy the inbox is
                next_ping = now + self.ping_interval_s
                self._check_silence()
                for session in list(self.sessions.values()):  # threads may add some meanwhile
                    if not session.closed:
                        session.request("ping")

    def _take(self, session: HostSession | None, frame: Frame) -> None:
        """Handle a frame; one that a host cannot have sent in good faith costs that host.

        Anything else that is raised is a fault of ours.
        """
        try:
            self._dispatch(session, frame)
        except FrameError as error:
            if session is None:
                raise
            session.reject(error)

    def _dispatch(self, session: HostSession | None, frame: Frame) -> None:
        if session is None:
            self.on_signal(int(frame.data["signal"]))
            return
        name = session.node.name
        current = self.sessions.get(name)
        is_own = current is session or (current is None and not session.closed_locally)
        if frame.kind == "reconnected":  # meant for an attempt that is over
            session.close()
        elif name not in self._pending() or not is_own:
            return
        elif frame.kind == "closed":
            self._on_closed(session, str(frame.data["reason"]))
        else:
            if frame.kind == "pong":
                self._disk_wait_s[name] = frame.data["disk_wait_s"]
            is_answer = self._on_frame(name, frame)
            if is_answer:
                self._answered_at.pop(name, None)
            if is_answer or frame.kind == "in_progress":
                self._worked_at.pop(name, None)

    def _check_progress(self, now: float) -> None:
        """Begin to count how long each node has not answered, and show it."""
        for name in self._pending():
            if not self._owes_answer(name):
                self._answered_at.pop(name, None)
                self._worked_at.pop(name, None)
                continue
            self._answered_at.setdefault(name, now)
            session = self.sessions.get(name)
            sent_at = session.last_sent if session else now
            worked_at = max(self._worked_at.get(name, now), sent_at)
            self._worked_at[name] = worked_at
            disk_wait_s = self._disk_wait_s.get(name, 0.0)
            if disk_wait_s >= DISK_TIMEOUT_S:
                self._show(name, f"its disk has not answered for {disk_wait_s:.0f} s")
            elif now - worked_at > SLOW_S:
                self._show(name, f"no answer for {now - worked_at:.0f} s; its disk may be slow")

    def _check_silence(self) -> None:
        for name in list(self._pending()):
            session = self.sessions.get(name)
            if session is None:
                pass
            elif session.idle_s > self.lost_s:
                self._on_lost(name, f"nothing was heard from it for {session.idle_s:.0f} s")
            elif session.closed and self.inbox.empty():
                self._on_lost(name, "the connection to it is gone")


class Broadcast(WaitLoop):
    """A request to every host; its `node` is the host's own name."""

    def all(self, kind: str, data: Mapping[str, Any], reply_kind: str) -> dict[str, dict[str, Any]]:
        """Return the replies of kind `reply_kind`, by node; raise NotReady if one is missing."""
        replies, problems = self.collect(kind, data, reply_kind)
        if problems:
            raise NotReady(list(problems.values()))
        return replies

    def collect(
        self,
        kind: str,
        data: Mapping[str, Any],
        reply_kind: str,
        timeout_s: float = math.inf,
    ) -> tuple[dict[str, dict[str, Any]], dict[str, Problem]]:
        """Return the replies to a request of `kind`, and the problem of every other host.

        The payload of a reply is its entry `payload`. A host has `timeout_s` to reply; what it
        replies later is dropped.
        """
        self._replies: dict[str, dict[str, Any]] = {}
        self._problems: dict[str, Problem] = {}
        self._request_ids: dict[str, int] = {}
        self._action = kind.replace("_", " ")
        self._reply_kind = reply_kind
        self._timeout_s = timeout_s
        self._deadline = time.monotonic() + timeout_s
        for name, session in self.sessions.items():
            self._request_ids[name] = session.request(kind, {**data, "node": name})
            self._show(name, "working")
        self.wait()
        return self._replies, self._problems

    def _pending(self) -> set[str]:
        return self.sessions.keys() - self._replies.keys() - self._problems.keys()

    def _on_frame(self, name: str, frame: Frame) -> bool:
        if frame.kind == self._reply_kind:
            self._replies[name] = {**frame.data, "payload": frame.payload}
            self._show(name, "done")
        elif frame.kind == "refused":
            self._on_lost(name, f"could not {self._action}: {frame.data['reason']}")
        return name not in self._pending()

    def _on_late(self, name: str) -> None:
        if self._timeout_s == math.inf:
            super()._on_late(name)
        else:
            self.sessions[name].abandoned.add(self._request_ids[name])
            self._on_lost(name, f"did not {self._action} within {self._timeout_s:g} s")

    def _on_lost(self, name: str, reason: str) -> None:
        self._problems[name] = Problem(name, reason, RETRY_HINT)
        self._show(name, "failed")
