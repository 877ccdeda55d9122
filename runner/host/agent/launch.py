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
from runner.core.model.facts import OUR_ENV, FactsRequest
from runner.core.model.order import Order
from runner.core.protocol.events import Cause
from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import RunFolder
from runner.host.agent.follow import Following
from runner.host.agent.handler import Duty, Handlers, Wire
from runner.host.agent.push import Receiving
from runner.host.facts import ports
from runner.host.facts.collect import collect
from runner.host.process.job_queue import Steps
from runner.host.storage import shipped_tasks
from runner.host.storage.checkout import check_out
from runner.host.storage.run_folder import prepare
from runner.host.storage.run_lock import Doorway

LOOK_S = 0.25
READY_S, SLICE_S = 20.0, 0.02

BEFORE_S = 10.0
"""How long the supervisor of an earlier attempt, a spare's perhaps, may take to end."""


class Starting(Duty):
    """Facts, the push of code, and the start of a run."""

    def __init__(
        self, wire: Wire, inbound: int, programs: Mapping[str, str], following: Following
    ) -> None:
        super().__init__(wire)
        self._in = inbound
        self._programs = programs
        self._following = following
        self._receiving: Optional[Receiving] = None
        self._record: Dict[str, Any] = {}
        self._request = FactsRequest("")

    def handlers(self) -> Handlers:
        """Return what answers each kind of request."""
        work = self.wire.work
        return {
            "facts": self._facts,
            "hold": self._hold,
            "manifest": lambda frame: work.add(frame, self._pushed().offered(frame)),
            "piece": lambda frame: work.add(frame, self._pushed().piece(frame)),
            "finish": lambda frame: work.add(frame, self._pushed().finished(frame)),
            "drop": lambda _: self._pushed().drop(),
            "record": self._keep_record,
            "go": lambda frame: work.add(frame, self._go(frame)),
        }

    def close(self) -> None:
        """Leave nothing half done."""
        if self._receiving is not None:
            self._receiving.drop()

    def _pushed(self) -> Receiving:
        self.wire.asked()
        assert self._receiving is not None  # noqa: S101 (made with the facts)
        return self._receiving

    def _facts(self, frame: Frame) -> None:
        request = self._request = decode(FactsRequest, frame.data["request"])
        if self.wire.known is not None:  # those of an attempt that did not start
            self.wire.known.held.close()
        with _giving_up_with(self._in):
            known = self.wire.known = collect(request)
        own = {name: known.environ[name] for name in OUR_ENV if name in known.environ}
        folder = RunFolder(known.facts.workdir, request.run_id, request.node)
        self._receiving = Receiving(known.facts.workdir, self.wire.reply)
        whole = known.facts.release_held and self._receiving.hold(request.release)
        facts = replace(
            known.facts,
            own_env=own,
            run_there=os.path.isdir(folder.root),
            run_stopped=os.path.lexists(folder.stopped),
            release_held=whole,
        )
        clocks = {"mono": time.monotonic(), "wall": time.time()}
        self.wire.reply("facts", {"id": frame.data["id"], "facts": encode(facts), **clocks})

    def _hold(self, frame: Frame) -> None:
        """Reserve other ports than those that were taken."""
        known = self.wire.asked()
        first, last = frame.data["first"], frame.data["last"]
        held, error = ports.hold(first, last, store=True, hub=frame.data["hub"])
        self.wire.known = replace(known, held=held)
        told = {"port": held.port, "hub_port": held.hub_port, "error": error}
        self.wire.reply("held", {"id": frame.data["id"], **told})

    def _keep_record(self, frame: Frame) -> None:
        """Take what every host has on record of the whole run: its plan and its configuration."""
        self._record = json.loads(zlib.decompress(frame.payload))

    def _go(self, frame: Frame) -> Steps:
        known = self.wire.asked()
        order = _with_numeric_hub(decode(Order, frame.data["order"]))
        if frame.data.get("tasks"):
            shipped_tasks.store(known.facts.workdir, frame.data["tasks"], frame.payload)
        folder = RunFolder(order.workdir, order.run_id, order.node)
        door, until = Doorway(order.run_id, order.node), time.monotonic() + BEFORE_S
        lock = door.lock_for_life()
        while lock is None and order.attempt and time.monotonic() < until:
            yield
            lock = door.lock_for_life()
        if lock is None:
            raise ValueError("this run has a supervisor here already")
        try:
            yield from self._prepare(folder, order)
            yield from self._spawn(frame, folder, order, lock)
        finally:  # the guardian has it by now, if there is one
            os.close(lock)

    def _prepare(self, folder: RunFolder, order: Order) -> Steps:
        """Make the run's folder, with its copy of the code.

        A later attempt, and one of a node that was lost and came back, go on in what an earlier
        one left here, if one was here at all.
        """
        if not (order.attempt or order.again) and os.path.lexists(folder.root):
            raise ValueError(f"there is a run {order.run_id} in {order.workdir} already")
        if order.attempt or order.again:
            from runner.host.supervisor import (
                guardian,  # no look at a host shall wait for this code
            )

            guardian.close_unended(folder)
        if os.path.lexists(folder.stopped):
            raise ValueError("somebody told the run to stop")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(folder.waiting)
        if os.path.lexists(folder.work):
            prepare(folder, order, self._programs, self._record)
            return
        was_here = os.path.lexists(folder.root)
        try:
            prepare(folder, order, self._programs, self._record)
            if order.release:
                yield from check_out(order.workdir, order.release, folder.work)
        except BaseException:
            left = (folder.work, folder.attempt(order.attempt)) if was_here else (folder.root,)
            for place in left:  # nothing was started
                shutil.rmtree(place, ignore_errors=True)
            raise

    def _spawn(self, frame: Frame, folder: RunFolder, order: Order, lock: int) -> Steps:
        from runner.core.relaunch.handover import (
            Handover,  # no look at a host shall wait for this code
        )
        from runner.host.peers.election import Means
        from runner.host.supervisor import guardian
        from runner.host.supervisor.supervisor import Start

        known = self.wire.asked()
        # A host's own PET_* would be options of torchrun's behind the back of the order.
        own = {name: value for name, value in known.environ.items() if name[:4] != "PET_"}
        environ = {**own, **frame.data.get("secrets", {})}
        token = str(frame.data.get("token", "")).encode()
        means = None
        if frame.data.get("handover"):
            means = Means(decode(Handover, frame.data["handover"]), self._request, self._programs)
        pipe = guardian.spawn(Start(folder, order, environ, known.held, token, means), lock)
        known.held.close()
        self.wire.known = replace(known, held=ports.NOTHING_HELD)
        self._following.follow(folder, order)  # from now on it can be stopped
        said = yield from _said(pipe)
        self._following.knock()
        if said is None:  # it hangs, perhaps with its disk, and may yet begin
            self._following.stop(f"no supervisor within {READY_S:g} s", Cause.OWN)
        elif said != guardian.READY:
            why = said.decode(errors="replace") or "its guardian ended without a word"
            self.wire.refuse(frame, why)
            return
        self.wire.reply("going", {"id": frame.data["id"]})


def _with_numeric_hub(order: Order) -> Order:
    """Look up the hub's name here: the supervisor must never wait for a resolver."""
    if order.hub is None:
        return order
    try:
        found = socket.getaddrinfo(order.hub.addr, order.hub.port, type=socket.SOCK_STREAM)
    except OSError:
        return order  # the supervisor will say that it cannot reach it
    return replace(order, hub=replace(order.hub, addr=str(found[0][4][0])))


@contextlib.contextmanager
def _giving_up_with(inbound: int) -> Iterator[None]:
    """End this process when the controller leaves while it is busy with something long.

    The kernel's timer looks, since we have one thread and the work may wait for minutes.
    """
    watched = select.poll()
    watched.register(inbound, 0)  # POLLHUP and POLLERR are always told

    def look(*_: object) -> None:
        if watched.poll(0):
            raise SystemExit(0)

    before = signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, LOOK_S, LOOK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _said(pipe: int) -> Generator[None, None, Optional[bytes]]:
    """Return what a guardian says, None if it says nothing for too long."""
    said, until = b"", time.monotonic() + READY_S
    try:
        while time.monotonic() < until:
            if select.select([pipe], [], [], SLICE_S)[0]:
                chunk = os.read(pipe, 65536)
                if not chunk:
                    return said
                said += chunk
            else:
                yield
        return None
    finally:
        os.close(pipe)
