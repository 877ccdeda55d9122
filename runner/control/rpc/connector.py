"""Reach every host at once, and have each report its facts, all within bounded time."""

from __future__ import annotations

import posixpath
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from runner.control.rpc import bootstrap
from runner.control.rpc.session import Inbox, Session
from runner.core.codec import decode, encode
from runner.core.errors import Interrupted, NotReady, Problem, RunnerError
from runner.core.model.facts import Facts, FactsRequest
from runner.core.model.packages import NCCL
from runner.core.model.release import Code
from runner.core.model.spec import Node, Spec
from runner.core.planning.etcd import CLIENT, plain_http
from runner.core.protocol.frames import Frame
from runner.transport.base import Transport
from runner.transport.local import LocalTransport

AT_ONCE = 64
"""Logins under way at a time: beyond it paramiko's threads only get in each other's way."""

PING_S = 2.0

BOOT_S = 20.0
"""How long a host may take from login to our code running (Python may sit on slow NFS)."""


class Reach:
    """How machines of one spec are reached; makes transports when they are first needed."""

    def __init__(self, spec: Spec, note: Callable[[str], None]) -> None:
        self.spec = spec
        self._note = note
        self._made: dict[str, Transport] = {}
        self._lock = threading.Lock()

    def open(self, node: Node, inbox: Inbox) -> Session:
        """Open a wire to `node`.

        Raises:
            NotReady: It cannot be reached.
        """
        command = bootstrap.boot_command(self.spec.host_python, self.spec.run_id, node.name)
        session = Session(node, self.transport(node.transport).open(node, command), inbox)
        session.send_raw(bootstrap.host_code())
        return session

    def transport(self, kind: str) -> Transport:
        """Return the transport of that kind."""
        with self._lock:
            if kind not in self._made:
                self._made[kind] = self._make(kind)
            return self._made[kind]

    def close(self) -> None:
        """End every connection."""
        with self._lock:
            for transport in self._made.values():
                transport.close()

    def _make(self, kind: str) -> Transport:
        if kind == "local":
            return LocalTransport()
        from runner.transport.ssh.transport import SshTransport

        return SshTransport(self.spec.ssh, notes=self._note)


class Gathered(NamedTuple):
    """What came of asking the hosts.

    Attributes:
        facts: Of every node that takes part.
        missing: What keeps each of the others from it, of those that were to.
        spares: The facts of spares that could take part.
        unfit: What is wrong with the others.
    """

    facts: dict[str, Facts]
    missing: dict[str, Problem]
    spares: dict[str, Facts]
    unfit: list[Problem]


class Gathering:
    """Connects to every node side by side and collects their facts."""

    def __init__(
        self,
        spec: Spec,
        reach: Reach,
        inbox: Inbox,
        request: Callable[[Node], FactsRequest],
        judge: Callable[[Node, Facts], list[Problem]],
        show: Callable[[str, str], None],
        known: Mapping[str, Session] = MappingProxyType({}),
    ) -> None:
        """Prepare it.

        Args:
            spec: The nodes, and how they are reached.
            reach: What opens the connections.
            inbox: Where all sessions put what they hear.
            request: Returns what to ask a node; called from threads, and may wait.
            judge: Returns what of a node's facts keeps it from what is wanted.
            show: Takes (node, state in a few words) whenever that changes.
            known: Wires there are already; those that are still open are used.
        """
        self._spec = spec
        self._reach = reach
        self._known = {name: each for name, each in known.items() if not each.closed}
        self._request, self._judge, self._show = request, judge, show
        self._names = {node.name for node in spec.nodes}
        self.inbox = inbox
        self.sessions: dict[str, Session] = {}
        self._problems: dict[str, Problem] = {}
        self._facts: dict[str, Facts] = {}
        self._deadlines: dict[str, float] = {}
        self._asked: dict[str, int] = {}
        self._next_ping = time.monotonic() + PING_S

    def run(self) -> dict[str, Facts]:
        """Return the facts of every node.

        Raises:
            NotReady: With every problem of every host, if one could not be reached or asked.
            Interrupted: By a signal.
        """
        return self.enough(len(self._spec.nodes)).facts

    def enough(self, least: int, spares: Collection[Node] = ()) -> Gathered:
        """Return the facts of those that may take part, and what keeps the others from it.

        Args:
            least: So many will do.
            spares: Nodes that need not be there; they take no part for now.

        Raises:
            NotReady: They are fewer, or the master is not among them; with every problem of every
                host that is no spare.
            Interrupted: By a signal.
        """
        facts, _ = self.some()
        needed = [node for node in self._spec.nodes if node not in spares]
        wrong = {node.name: self._wrong_with(node) for node in needed}
        fit = {name: facts[name] for name, problems in wrong.items() if not problems}
        vital = {self._spec.master.name, self._spec.rendezvous.serve} - {""}
        if len(fit) < least or vital - fit.keys():
            every = [each for problems in wrong.values() for each in problems]
            raise NotReady(list(dict.fromkeys(every)))  # our own side's stands at every node
        missing = {name: problems[0] for name, problems in wrong.items() if problems}
        unfit = {node.name: self._wrong_with(node) for node in spares}
        standing_by = {name: facts[name] for name, problems in unfit.items() if not problems}
        return Gathered(fit, missing, standing_by, [p for each in unfit.values() for p in each])

    def some(self) -> tuple[dict[str, Facts], dict[str, Problem]]:
        """Return the facts of those that could be asked, and what kept the others.

        Raises:
            Interrupted: By a signal.
        """
        waiting = set(self._names)
        self._connect_all()
        while waiting - self._facts.keys() - self._problems.keys():
            self._give_up_late(waiting)
            self._ping()
            try:
                session, frame = self.inbox.get(timeout=0.1)
            except queue.Empty:
                continue
            if session is None:
                raise Interrupted(128 + frame.data["signal"])
            self._take(session, frame)
        return self._facts, self._problems

    def _ping(self) -> None:
        """Keep those company that have answered, however long the others take."""
        now = time.monotonic()
        if now >= self._next_ping:
            self._next_ping = now + PING_S
            for session in list(self.sessions.values()):
                session.request("ping")

    def _wrong_with(self, node: Node) -> list[Problem]:
        """Return what keeps a host from the run: that it was not reached, or what it reported."""
        if node.name in self._problems:
            return [self._problems[node.name]]
        return self._judge(node, self._facts[node.name])

    def _connect_all(self) -> None:
        todo = queue.SimpleQueue[Node]()
        for node in self._spec.nodes:
            todo.put(node)

        def work() -> None:
            while True:
                try:
                    node = todo.get_nowait()
                except queue.Empty:
                    return
                self._connect(node)

        for _ in range(min(AT_ONCE, len(self._spec.nodes))):
            threading.Thread(target=work, daemon=True, name="connect").start()

    def _connect(self, node: Node) -> None:
        self._show(node.name, "connecting")
        try:
            session = self._known.get(node.name) or self._reach.open(node, self.inbox)
        except NotReady as error:
            self._fail(node, error.problems[0], "not reached")
            return
        except Exception as error:  # noqa: BLE001 (whatever it is, nobody shall wait for this node)
            what = f"could not be reached: {type(error).__name__}: {error}"
            self._fail(node, Problem(node.name, what, "this is a bug of the runner"), "failed")
            return
        self.sessions[node.name] = session  # from now on it is kept company
        try:
            request = self._request(node)
        except RunnerError as error:  # of our own side, such as a file that cannot be read
            self._fail(node, error.problems[0], "failed")
            return
        except Exception as error:  # noqa: BLE001 (as above)
            what = f"could not be prepared: {type(error).__name__}: {error}"
            self._fail(node, Problem("deploy", what, "this is a bug of the runner"), "failed")
            return
        session.request("ping")
        self._asked[node.name] = session.request("facts", {"request": encode(request)})
        slow = request.setup_s if request.setup else 0.0
        self._deadlines[node.name] = time.monotonic() + BOOT_S + request.deadline_s + slow

    def _fail(self, node: Node, problem: Problem, state: str) -> None:
        self._problems[node.name] = problem
        self._show(node.name, state)

    def _give_up_late(self, waiting: set[str]) -> None:
        now = time.monotonic()
        for name in waiting - self._facts.keys() - self._problems.keys():
            if now > self._deadlines.get(name, now):
                what = "reached, but it did not report its facts in time"
                banner = self.sessions[name].banner.decode(errors="replace").strip()
                self._problems[name] = Problem(name, what, banner[-500:])
                self._show(name, "failed")

    def _take(self, session: Session, frame: Frame) -> None:
        name = session.node.name
        if frame.kind in ("opened", "arrived"):  # for an attempt that is over
            session.close()
        elif session.dropped or name not in self._names:
            return
        elif frame.kind == "facts":
            self._show(name, "ready")
            self._facts[name] = replace(decode(Facts, frame.data["facts"]), node=name)
        elif frame.kind == "refused" and self._asked.get(name) in (*(None, frame.data.get("id")),):
            self._problems[name] = Problem(name, f"could not report its facts: {frame.data['why']}")
            self._show(name, "failed")
        elif frame.kind == "closed":
            self._problems.setdefault(name, boot_problem(self._spec, session, frame))
            self._show(name, "failed")


def launch_request(
    spec: Spec, node: Node, code: Code, packages: tuple[str, ...] = ()
) -> FactsRequest:
    """Return all a launch wants to know of a node; of those packages, whether they are there."""
    task = spec.task
    script = task.target if task.kind == "script" else ""
    if code.release and (code.script or not posixpath.isabs(script)):
        script = ""  # it comes with the release
    master = node is spec.master
    holds = spec.rendezvous.holds(node.name, spec.master.name)
    voter = spec.relaunch.max > 0
    many = len(spec.nodes) + len(spec.spares) > 1
    return FactsRequest(
        node=node.name,
        run_id=spec.run_id,
        setup=spec.setup,
        python=spec.python,
        project="" if task.shipped or code.release else spec.project,
        script=script,
        workdir=spec.workdir,
        tasks_hash=code.tasks_hash,
        release=code.release,
        hold_port=holds,
        hold_hub=master and many,
        hold_vote=voter and many,
        port_first=spec.master_port.first if master or holds or voter else 0,
        port_last=spec.master_port.last if master or holds or voter else 0,
        python_path=spec.env_of(node).get("PYTHONPATH", ""),
        packages=(*NCCL, *(CLIENT if spec.rendezvous.etcd else ()), *packages),
        serves=node.name == spec.rendezvous.serve,
        endpoint=spec.rendezvous.endpoint if plain_http(spec) else "",
    )


def boot_problem(spec: Spec, session: Session, frame: Frame) -> Problem:
    """Say why our code did not run on a host, from what came instead of the magic line."""
    name, banner = session.node.name, session.banner.decode(errors="replace").strip()
    if "runner-boot: no-python" in banner:
        return Problem(
            name,
            f"there is no {spec.host_python}{'' if '/' in spec.host_python else ' on its PATH'}",
            "set cluster.host_python (and cluster.python) to a Python 3.8 or newer there",
        )
    if "runner-boot: python-too-old" in banner or "unknown option -I" in banner.lower():
        found = banner.rpartition("too-old ")[2].split()[0] if "too-old " in banner else "2"
        return Problem(
            name,
            f"{spec.host_python} there is Python {found}; our side needs 3.8 or newer",
            "set cluster.host_python to a newer one (cluster.python may stay)",
        )
    what = f"our code did not start there: {frame.data['reason']}"
    return Problem(name, what, banner[-500:] or f"try by hand: {spec.host_python} -V")
