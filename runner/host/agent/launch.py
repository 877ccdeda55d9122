"""From facts to a running supervisor: what a link does for a launch."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import time
import zlib
from dataclasses import replace
from typing import Any, Dict, Generator, Iterator, Mapping, Optional

from runner.core.codec import decode, encode
from runner.core.model.facts import MANAGED_ENV, FactsRequest
from runner.core.model.order import Order
from runner.core.protocol.events import StopCause
from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import RunPaths
from runner.host.agent.follow import FollowHandler
from runner.host.agent.handler import AgentContext, HandlerTable, RequestHandler
from runner.host.agent.push import PushReceiver
from runner.host.facts import ports
from runner.host.facts.collect import collect
from runner.host.process.job_queue import Steps
from runner.host.storage import shipped_tasks
from runner.host.storage.checkout import check_out
from runner.host.storage.run_folder import create_run_folder
from runner.host.storage.run_lock import RunLock
from runner.host.supervisor.recovery import recover_unfinished

HANGUP_POLL_S = 0.25
STARTUP_TIMEOUT_S, STARTUP_POLL_S = 20.0, 0.02

PREDECESSOR_TIMEOUT_S = 10.0
"""How long the supervisor of an earlier attempt, a spare's perhaps, may take to end."""


class LaunchHandler(RequestHandler):
    """Facts, the push of code, and the start of a run."""

    def __init__(
        self,
        context: AgentContext,
        in_fd: int,
        programs: Mapping[str, str],
        follow_handler: FollowHandler,
    ) -> None:
        super().__init__(context)
        self._in_fd = in_fd
        self._programs = programs
        self._follow_handler = follow_handler
        self._push_receiver: Optional[PushReceiver] = None
        self._run_record: Dict[str, Any] = {}
        self._facts_request = FactsRequest("")

    def handlers(self) -> HandlerTable:
        """Return what answers each kind of request."""
        jobs = self.context.jobs
        return {
            "facts": self._report_facts,
            "reserve_ports": self._reserve_ports,
            "manifest": lambda frame: jobs.add(frame, self._receiver().on_manifest(frame)),
            "chunk": lambda frame: jobs.add(frame, self._receiver().on_chunk(frame)),
            "finish": lambda frame: jobs.add(frame, self._receiver().on_finish(frame)),
            "abort_push": lambda _: self._receiver().abort(),
            "record": self._set_run_record,
            "start": lambda frame: jobs.add(frame, self._start_run(frame)),
        }

    def close(self) -> None:
        """Leave nothing half done."""
        if self._push_receiver is not None:
            self._push_receiver.abort()

    def _receiver(self) -> PushReceiver:
        self.context.require_facts()
        assert self._push_receiver is not None  # noqa: S101 (made with the facts)
        return self._push_receiver

    def _report_facts(self, frame: Frame) -> None:
        request = self._facts_request = decode(FactsRequest, frame.data["request"])
        if self.context.facts is not None:  # those of an attempt that did not start
            self.context.facts.reserved.close()
        with _exit_on_disconnect(self._in_fd):
            result = self.context.facts = collect(request)
        own_env = {name: result.environ[name] for name in MANAGED_ENV if name in result.environ}
        folder = RunPaths(result.facts.workdir, request.run_id, request.node)
        self._push_receiver = PushReceiver(result.facts.workdir, self.context.reply)
        release_held = result.facts.has_release and self._push_receiver.pin(request.release)
        facts = replace(
            result.facts,
            preset_env=own_env,
            run_exists=os.path.isdir(folder.root),
            run_stopped=os.path.lexists(folder.stop_marker),
            has_release=release_held,
        )
        clocks = {"mono": time.monotonic(), "wall": time.time()}
        self.context.reply("facts", {"id": frame.data["id"], "facts": encode(facts), **clocks})

    def _reserve_ports(self, frame: Frame) -> None:
        """Reserve other ports than those that were taken."""
        facts = self.context.require_facts()
        first, last = frame.data["first"], frame.data["last"]
        reserved, error = ports.reserve_ports(first, last, store=True, hub=frame.data["hub"])
        self.context.facts = replace(facts, reserved=reserved)
        reply = {"port": reserved.store_port, "hub_port": reserved.hub_port, "error": error}
        self.context.reply("ports_reserved", {"id": frame.data["id"], **reply})

    def _set_run_record(self, frame: Frame) -> None:
        """Take what every host has on record of the whole run: its plan and its configuration."""
        self._run_record = json.loads(zlib.decompress(frame.payload))

    def _start_run(self, frame: Frame) -> Steps:
        facts = self.context.require_facts()
        order = _with_numeric_hub(decode(Order, frame.data["order"]))
        if frame.data.get("tasks"):
            shipped_tasks.store(facts.facts.workdir, frame.data["tasks"], frame.payload)
        folder = RunPaths(order.workdir, order.run_id, order.node)
        run_lock, deadline = (
            RunLock(order.run_id, order.node),
            time.monotonic() + PREDECESSOR_TIMEOUT_S,
        )
        lock = run_lock.acquire()
        while lock is None and order.attempt and time.monotonic() < deadline:
            yield
            lock = run_lock.acquire()
        if lock is None:
            raise ValueError("this run has a supervisor here already")
        try:
            yield from self._prepare(folder, order)
            yield from self._spawn(frame, folder, order, lock)
        finally:  # the guardian has it by now, if there is one
            os.close(lock)

    def _prepare(self, folder: RunPaths, order: Order) -> Steps:
        """Make the run's folder, with its copy of the code.

        A later attempt, and one of a node that was lost and came back, go on in what an earlier
        one left here, if one was here at all.
        """
        if not (order.attempt or order.rejoin_count) and os.path.lexists(folder.root):
            raise ValueError(f"there is a run {order.run_id} in {order.workdir} already")
        if order.attempt or order.rejoin_count:
            recover_unfinished(folder)
        if os.path.lexists(folder.stop_marker):
            raise ValueError("somebody told the run to stop")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(folder.relaunch_marker)
        if os.path.lexists(folder.work):
            create_run_folder(folder, order, self._programs, self._run_record)
            return
        existed = os.path.lexists(folder.root)
        try:
            create_run_folder(folder, order, self._programs, self._run_record)
            if order.release:
                yield from check_out(order.workdir, order.release, folder.work)
        except BaseException:
            paths = (
                (folder.work, folder.attempt_folder(order.attempt)) if existed else (folder.root,)
            )
            for path in paths:  # nothing was started
                shutil.rmtree(path, ignore_errors=True)
            raise

    def _spawn(self, frame: Frame, folder: RunPaths, order: Order, lock: int) -> Steps:
        from runner.core.relaunch.handover import (
            RelaunchContext,  # no look at a host shall wait for this code
        )
        from runner.host.peers.election import ElectionContext
        from runner.host.supervisor import guardian
        from runner.host.supervisor.args import SupervisorArgs

        facts = self.context.require_facts()
        # A host's own PET_* would be options of torchrun's behind the back of the order.
        host_env = {name: value for name, value in facts.environ.items() if name[:4] != "PET_"}
        environ = {**host_env, **frame.data.get("secrets", {})}
        token = str(frame.data.get("token", "")).encode()
        relaunch_context = None
        if frame.data.get("handover"):
            relaunch_context = ElectionContext(
                decode(RelaunchContext, frame.data["handover"]), self._facts_request, self._programs
            )
        pipe = guardian.spawn(
            SupervisorArgs(folder, order, environ, facts.reserved, token, relaunch_context), lock
        )
        facts.reserved.close()
        self.context.facts = replace(facts, reserved=ports.NO_PORTS)
        self._follow_handler.follow(folder, order)  # from now on it can be stopped
        report = yield from _read_startup_report(pipe)
        self._follow_handler.try_connect()
        if report is None:  # it hangs, perhaps with its disk, and may yet begin
            self._follow_handler.stop(
                f"no supervisor within {STARTUP_TIMEOUT_S:g} s", StopCause.LOCAL
            )
        elif report != guardian.READY:
            reason = report.decode(errors="replace") or "its guardian ended without a word"
            self.context.refuse(frame, reason)
            return
        self.context.reply("following", {"id": frame.data["id"]})


def _with_numeric_hub(order: Order) -> Order:
    """Look up the hub's name here: the supervisor must never wait for a resolver."""
    if order.hub is None:
        return order
    try:
        addresses = socket.getaddrinfo(order.hub.addr, order.hub.port, type=socket.SOCK_STREAM)
    except OSError:
        return order  # the supervisor will say that it cannot reach it
    return replace(order, hub=replace(order.hub, addr=str(addresses[0][4][0])))


@contextlib.contextmanager
def _exit_on_disconnect(in_fd: int) -> Iterator[None]:
    """End this process when the controller leaves while it is busy with something long.

    The kernel's timer looks, since we have one thread and the work may wait for minutes.
    """
    poller = select.poll()
    poller.register(in_fd, 0)  # POLLHUP and POLLERR are always told

    def exit_if_hung_up(*_: object) -> None:
        if poller.poll(0):
            raise SystemExit(0)

    previous = signal.signal(signal.SIGALRM, exit_if_hung_up)
    signal.setitimer(signal.ITIMER_REAL, HANGUP_POLL_S, HANGUP_POLL_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def _read_startup_report(pipe: int) -> Generator[None, None, Optional[bytes]]:
    """Return what a guardian says, None if it says nothing for too long."""
    report, deadline = b"", time.monotonic() + STARTUP_TIMEOUT_S
    try:
        while time.monotonic() < deadline:
            if select.select([pipe], [], [], STARTUP_POLL_S)[0]:
                chunk = os.read(pipe, 65536)
                if not chunk:
                    return report
                report += chunk
            else:
                yield
        return None
    finally:
        os.close(pipe)
