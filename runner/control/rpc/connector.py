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
from runner.control.rpc.session import HostSession, Inbox
from runner.core.codec import decode, encode
from runner.core.errors import Interrupted, NotReady, Problem, RunnerError
from runner.core.model.facts import Facts, FactsRequest
from runner.core.model.packages import NCCL_PACKAGES
from runner.core.model.release import CodeRef
from runner.core.model.spec import Node, Spec
from runner.core.planning.etcd import CLIENT_PACKAGE, uses_plain_http
from runner.core.protocol.frames import Frame
from runner.transport.base import Transport
from runner.transport.local import LocalTransport

MAX_CONCURRENT_LOGINS = 64
"""Logins under way at a time: beyond it paramiko's threads only get in each other's way."""

PING_S = 2.0

BOOT_TIMEOUT_S = 20.0
"""How long a host may take from login to our code running (Python may sit on slow NFS)."""


class Connector:
    """How machines of one spec are reached; makes transports when they are first needed."""

    def __init__(self, spec: Spec, on_note: Callable[[str], None]) -> None:
        self.spec = spec
        self._on_note = on_note
        self._transports: dict[str, Transport] = {}
        self._lock = threading.Lock()

    def open(self, node: Node, inbox: Inbox) -> HostSession:
        """Open a wire to `node`.

        Raises:
            NotReady: It cannot be reached.
        """
        command = bootstrap.boot_command(self.spec.host_python, self.spec.run_id, node.name)
        session = HostSession(node, self.transport(node.transport).open(node, command), inbox)
        session.send_raw(bootstrap.host_code())
        return session

    def transport(self, kind: str) -> Transport:
        """Return the transport of that kind."""
        with self._lock:
            if kind not in self._transports:
                self._transports[kind] = self._make_transport(kind)
            return self._transports[kind]

    def close(self) -> None:
        """End every connection."""
        with self._lock:
            for transport in self._transports.values():
                transport.close()

    def _make_transport(self, kind: str) -> Transport:
        if kind == "local":
            return LocalTransport()
        from runner.transport.ssh.transport import SshTransport

        return SshTransport(self.spec.ssh, on_note=self._on_note)


class CollectedFacts(NamedTuple):
    """What came of asking the hosts.

    Attributes:
        facts: Of every node that takes part.
        missing: What keeps each of the others from it, of those that were to.
        spares: The facts of spares that could take part.
        spare_problems: What is wrong with the others.
    """

    facts: dict[str, Facts]
    missing: dict[str, Problem]
    spares: dict[str, Facts]
    spare_problems: list[Problem]


class FactsCollector:
    """Connects to every node side by side and collects their facts."""

    def __init__(
        self,
        spec: Spec,
        connector: Connector,
        inbox: Inbox,
        request: Callable[[Node], FactsRequest],
        validate: Callable[[Node, Facts], list[Problem]],
        show: Callable[[str, str], None],
        open_sessions: Mapping[str, HostSession] = MappingProxyType({}),
    ) -> None:
        """Prepare it.

        Args:
            spec: The nodes, and how they are reached.
            connector: What opens the connections.
            inbox: Where all sessions put what they hear.
            request: Returns what to ask a node; called from threads, and may wait.
            validate: Returns what of a node's facts keeps it from what is wanted.
            show: Takes (node, state in a few words) whenever that changes.
            open_sessions: Wires there are already; those that are still open are used.
        """
        self._spec = spec
        self._connector = connector
        self._open_sessions = {
            name: session for name, session in open_sessions.items() if not session.closed
        }
        self._request, self._validate, self._show = request, validate, show
        self._names = {node.name for node in spec.nodes}
        self.inbox = inbox
        self.sessions: dict[str, HostSession] = {}
        self._problems: dict[str, Problem] = {}
        self._facts: dict[str, Facts] = {}
        self._deadlines: dict[str, float] = {}
        self._request_ids: dict[str, int] = {}
        self._next_ping = time.monotonic() + PING_S

    def collect_all(self) -> dict[str, Facts]:
        """Return the facts of every node.

        Raises:
            NotReady: With every problem of every host, if one could not be reached or asked.
            Interrupted: By a signal.
        """
        return self.at_least(len(self._spec.nodes)).facts

    def at_least(self, minimum: int, spares: Collection[Node] = ()) -> CollectedFacts:
        """Return the facts of those that may take part, and what keeps the others from it.

        Args:
            minimum: So many will do.
            spares: Nodes that need not be there; they take no part for now.

        Raises:
            NotReady: They are fewer, or the master is not among them; with every problem of every
                host that is no spare.
            Interrupted: By a signal.
        """
        facts, _ = self.collect()
        needed = [node for node in self._spec.nodes if node not in spares]
        problems_by_node = {node.name: self._problems_of(node) for node in needed}
        usable = {name: facts[name] for name, problems in problems_by_node.items() if not problems}
        required = {self._spec.master.name, self._spec.rendezvous.serve} - {""}
        if len(usable) < minimum or required - usable.keys():
            all_problems = [each for problems in problems_by_node.values() for each in problems]
            raise NotReady(list(dict.fromkeys(all_problems)))  # our own side's stands at every node
        missing = {name: problems[0] for name, problems in problems_by_node.items() if problems}
        spare_problems = {node.name: self._problems_of(node) for node in spares}
        spare_facts = {
            name: facts[name] for name, problems in spare_problems.items() if not problems
        }
        return CollectedFacts(
            usable, missing, spare_facts, [p for each in spare_problems.values() for p in each]
        )

    def collect(self) -> tuple[dict[str, Facts], dict[str, Problem]]:
        """Return the facts of those that could be asked, and what kept the others.

        Raises:
            Interrupted: By a signal.
        """
        pending = set(self._names)
        self._connect_all()
        while pending - self._facts.keys() - self._problems.keys():
            self._expire_overdue(pending)
            self._ping()
            try:
                session, frame = self.inbox.get(timeout=0.1)
            except queue.Empty:
                continue
            if session is None:
                raise Interrupted(128 + frame.data["signal"])
            self._on_frame(session, frame)
        return self._facts, self._problems

    def _ping(self) -> None:
        """Keep those company that have answered, however long the others take."""
        now = time.monotonic()
        if now >= self._next_ping:
            self._next_ping = now + PING_S
            for session in list(self.sessions.values()):
                session.request("ping")

    def _problems_of(self, node: Node) -> list[Problem]:
        """Return what keeps a host from the run: that it was not reached, or what it reported."""
        if node.name in self._problems:
            return [self._problems[node.name]]
        return self._validate(node, self._facts[node.name])

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

        for _ in range(min(MAX_CONCURRENT_LOGINS, len(self._spec.nodes))):
            threading.Thread(target=work, daemon=True, name="connect").start()

    def _connect(self, node: Node) -> None:
        self._show(node.name, "connecting")
        try:
            session = self._open_sessions.get(node.name) or self._connector.open(node, self.inbox)
        except NotReady as error:
            self._fail(node, error.problems[0], "not reached")
            return
        except Exception as error:  # noqa: BLE001 (whatever it is, nobody shall wait for this node)
            message = f"could not be reached: {type(error).__name__}: {error}"
            self._fail(node, Problem(node.name, message, "this is a bug of the runner"), "failed")
            return
        self.sessions[node.name] = session  # from now on it is kept company
        try:
            request = self._request(node)
        except RunnerError as error:  # of our own side, such as a file that cannot be read
            self._fail(node, error.problems[0], "failed")
            return
        except Exception as error:  # noqa: BLE001 (as above)
            message = f"could not be prepared: {type(error).__name__}: {error}"
            self._fail(node, Problem("deploy", message, "this is a bug of the runner"), "failed")
            return
        session.request("ping")
        self._request_ids[node.name] = session.request("facts", {"request": encode(request)})
        setup_s = request.setup_timeout_s if request.setup else 0.0
        self._deadlines[node.name] = (
            time.monotonic() + BOOT_TIMEOUT_S + request.tool_timeout_s + setup_s
        )

    def _fail(self, node: Node, problem: Problem, state: str) -> None:
        self._problems[node.name] = problem
        self._show(node.name, state)

    def _expire_overdue(self, pending: set[str]) -> None:
        now = time.monotonic()
        for name in pending - self._facts.keys() - self._problems.keys():
            if now > self._deadlines.get(name, now):
                message = "reached, but it did not report its facts in time"
                banner = self.sessions[name].banner.decode(errors="replace").strip()
                self._problems[name] = Problem(name, message, banner[-500:])
                self._show(name, "failed")

    def _on_frame(self, session: HostSession, frame: Frame) -> None:
        name = session.node.name
        if frame.kind in ("reconnected", "admitted"):  # for an attempt that is over
            session.close()
        elif session.closed_locally or name not in self._names:
            return
        elif frame.kind == "facts":
            self._show(name, "ready")
            self._facts[name] = replace(decode(Facts, frame.data["facts"]), node=name)
        elif frame.kind == "refused" and self._request_ids.get(name) in (
            *(None, frame.data.get("id")),
        ):
            self._problems[name] = Problem(
                name, f"could not report its facts: {frame.data['reason']}"
            )
            self._show(name, "failed")
        elif frame.kind == "closed":
            self._problems.setdefault(name, boot_problem(self._spec, session, frame))
            self._show(name, "failed")


def facts_request(
    spec: Spec, node: Node, code: CodeRef, packages: tuple[str, ...] = ()
) -> FactsRequest:
    """Return all a launch wants to know of a node; of those packages, whether they are there."""
    task = spec.task
    script = task.target if task.kind == "script" else ""
    if code.release and (code.script or not posixpath.isabs(script)):
        script = ""  # it comes with the release
    is_master = node is spec.master
    reserves_port = spec.rendezvous.reserves_port(node.name, spec.master.name)
    is_voter = spec.relaunch.max > 0
    has_peers = len(spec.nodes) + len(spec.spares) > 1
    return FactsRequest(
        node=node.name,
        run_id=spec.run_id,
        setup=spec.setup,
        python=spec.python,
        project="" if task.shipped_file or code.release else spec.project,
        script=script,
        workdir=spec.workdir,
        tasks_hash=code.tasks_hash,
        release=code.release,
        reserve_port=reserves_port,
        reserve_hub_port=is_master and has_peers,
        reserve_vote_port=is_voter and has_peers,
        port_first=spec.master_port.first if is_master or reserves_port or is_voter else 0,
        port_last=spec.master_port.last if is_master or reserves_port or is_voter else 0,
        python_path=spec.env_of(node).get("PYTHONPATH", ""),
        packages=(
            *NCCL_PACKAGES,
            *(CLIENT_PACKAGE if spec.rendezvous.uses_etcd else ()),
            *packages,
        ),
        find_etcd=node.name == spec.rendezvous.serve,
        etcd_endpoint=spec.rendezvous.endpoint if uses_plain_http(spec) else "",
    )


def boot_problem(spec: Spec, session: HostSession, frame: Frame) -> Problem:
    """Say why our code did not run on a host, from what came instead of the magic line."""
    name, banner = session.node.name, session.banner.decode(errors="replace").strip()
    if "runner-boot: no-python" in banner:
        return Problem(
            name,
            f"there is no {spec.host_python}{'' if '/' in spec.host_python else ' on its PATH'}",
            "set cluster.host_python (and cluster.python) to a Python 3.8 or newer there",
        )
    if "runner-boot: python-too-old" in banner or "unknown option -I" in banner.lower():
        version = banner.rpartition("too-old ")[2].split()[0] if "too-old " in banner else "2"
        return Problem(
            name,
            f"{spec.host_python} there is Python {version}; our side needs 3.8 or newer",
            "set cluster.host_python to a newer one (cluster.python may stay)",
        )
    message = f"our code did not start there: {frame.data['reason']}"
    return Problem(name, message, banner[-500:] or f"try by hand: {spec.host_python} -V")
