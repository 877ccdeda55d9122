"""Facts collector: connects to every node at once, and has each report its facts in time."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from runner.control.rpc.bootstrap import BOOT_TIMEOUT_S
from runner.control.rpc.session import Connector, HostSession, Inbox
from runner.control.rpc.wait import WaitLoop
from runner.core import shell
from runner.core.errors import Problem, RunnerError
from runner.core.spec import Node, Spec
from runner.core.wire.codec import Frame, encode
from runner.core.wire.facts import Facts, FactsRequest

MAX_CONCURRENT_LOGINS = 64
"""Logins in progress at a time: with more, paramiko's threads only slow each other down."""

BUG_HINT = "this is a bug of the runner"
GATEWAY_HINT = (
    "a gateway that wants a terminal, or an account without a shell? name the machine behind it,"
    " and the gateway in cluster.ssh.jump"
)


class FactsCollector(WaitLoop):
    """Connects to every node at once and collects their facts.

    `request` returns what to ask a node; it is called from threads, and may block. Of the
    `open_sessions` from before, those that are still open are used.
    """

    interrupted_message = "interrupted; nothing was started"
    owes_answers = False

    def __init__(
        self,
        spec: Spec,
        connector: Connector,
        inbox: Inbox,
        request: Callable[[Node], FactsRequest],
        show: Callable[[str, str], None],
        open_sessions: Mapping[str, HostSession] = MappingProxyType({}),
    ) -> None:
        self.sessions: dict[str, HostSession] = {}
        super().__init__(self.sessions, inbox, show=show)
        self._spec = spec
        self._connector = connector
        self._request = request
        self._open_sessions = {n: each for n, each in open_sessions.items() if not each.closed}
        self._problems: dict[str, Problem] = {}
        self._facts: dict[str, Facts] = {}
        self._connected_at: dict[str, float] = {}
        self._deadlines: dict[str, float] = {}
        self._request_ids: dict[str, int] = {}

    def collect(self) -> tuple[dict[str, Facts], dict[str, Problem]]:
        """Return the facts of the nodes that reported them, and the problem of every other node."""
        self._connect_all()
        self.wait()
        for name in self._facts.keys() - self._problems.keys():
            if self.sessions[name].closed:
                message = "the connection to it broke after it had reported its facts"
                self._fail(name, Problem(name, message))
        return self._facts, self._problems

    def _connect_all(self) -> None:
        todo = queue.SimpleQueue[Node]()
        for node in self._spec.nodes:
            todo.put(node)

        def work() -> None:
            with contextlib.suppress(queue.Empty):
                while True:
                    self._connect(todo.get_nowait())

        for _ in range(min(MAX_CONCURRENT_LOGINS, len(self._spec.nodes))):
            threading.Thread(target=work, daemon=True, name="connect").start()

    def _connect(self, node: Node) -> None:
        name = node.name
        self._show(name, "connecting")
        try:
            session = self._open_sessions.get(name) or self._connector.open(node, self.inbox)
            self._connected_at[name] = time.monotonic()
            self.sessions[name] = session  # pinged from now on
            request = self._request(node)
        except RunnerError as error:
            self._fail(
                name, error.problems[0], "failed" if name in self.sessions else "not reached"
            )
            return
        except Exception as error:  # noqa: BLE001 (an error in this thread must not hang the wait)
            message = f"could not be asked: {type(error).__name__}: {error}"
            self._fail(name, Problem(name, message, BUG_HINT))
            return
        if request.container:  # which may take minutes
            self._show(name, "waiting for its container engine")
        session.request("ping")
        self._request_ids[name] = session.request("facts", {"request": encode(request)})
        limit_s = BOOT_TIMEOUT_S + request.tools_limit_s
        limit_s += request.setup_timeout_s if request.setup else 0.0
        self._deadlines[name] = time.monotonic() + limit_s

    def _fail(self, name: str, problem: Problem, state: str = "failed") -> None:
        self._problems[name] = problem
        self._show(name, state)

    def _pending(self) -> set[str]:
        names = {node.name for node in self._spec.nodes}
        return names - self._facts.keys() - self._problems.keys()

    def _deadline_of(self, name: str) -> float:
        session = self.sessions.get(name)
        if session and session.banner and not session.has_shell:
            return self._connected_at[name] + self._spec.cluster.ssh.connect_timeout
        return self._deadlines.get(name, math.inf)

    def _on_frame(self, name: str, frame: Frame) -> bool:
        is_ours = self._request_ids.get(name) in (None, frame.data.get("id"))
        if frame.kind == "facts":
            self._show(name, "ready")
            self._facts[name] = replace(frame.data["facts"], node=name)
        elif frame.kind == "refused" and is_ours:
            message = f"could not report its facts: {frame.data['reason']}"
            self._fail(name, Problem(name, message))
        return name not in self._pending()

    def _on_closed(self, session: HostSession, reason: str) -> None:
        name = session.node.name  # perhaps before `open` returned its session
        message, hint = self._explain(session, reason)
        self._fail(name, Problem(name, message, hint))

    def _explain(self, session: HostSession, reason: str) -> tuple[str, str]:
        """Return why the agent did not start, from what came in place of frames, and what to do."""
        text = session.banner.decode(errors="replace").strip()
        cluster = self._spec.cluster
        python = cluster.host_python
        if text and not session.has_shell:
            message = f"it lets us in, and starts no program: {reason}"
            return message, f"{text[-500:]}\n{GATEWAY_HINT}"
        if "runner-boot: no-python" in text:
            where = "" if "/" in python else " on its PATH"
            is_same = python == cluster.python and not cluster.setup
            key = "cluster.python" if is_same else "cluster.host_python"
            explain = f"{shell.this_program()} explain {key} {shell.cluster_flag(cluster.name)}"
            hint = f"set {key} to a Python 3.8 or newer there\nwhat sets it: {explain}"
            return f"there is no {python}{where}", hint
        if "runner-boot: python-too-old" in text or "unknown option -I" in text.lower():
            version = text.rpartition("too-old ")[2].split()[0] if "too-old " in text else "2"
            message = f"{python} there is Python {version}; the agent needs 3.8 or newer"
            return message, "set cluster.host_python to a newer one (cluster.python may stay)"
        hint = text[-500:] or f"try by hand: {python} -V"
        return f"the agent did not start there: {reason}", hint

    def _on_lost(self, name: str, reason: str) -> None:
        self._on_closed(self.sessions[name], reason)

    def _on_late(self, name: str) -> None:
        session = self.sessions[name]
        if not session.has_shell:
            session.close()
            self._on_closed(session, "it printed this and waits")
            return
        banner = session.banner.decode(errors="replace").strip()
        message = "reached, but it did not report its facts in time"
        self._fail(name, Problem(name, message, banner[-500:]))
