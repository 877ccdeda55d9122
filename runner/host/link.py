"""The link: our process at the host's end of a channel.

It answers the controller and reads files; it owns nothing but the reserved port until `go`.
Killing it changes nothing for the run: the supervisor is no child of it.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import sys
import time
from dataclasses import replace
from typing import Any, Callable, Dict, Iterator, NoReturn, Optional

from runner.core.codec import decode, encode
from runner.core.facts import OUR_ENV, FactsRequest
from runner.core.layout import RunFolder
from runner.core.order import Order
from runner.core.wire import MAGIC, PROTOCOL, Frame, Unpacker
from runner.host import guardian, ports, proc, tasks
from runner.host.checkout import check_out
from runner.host.cleaning import clean
from runner.host.doorway import Doorway
from runner.host.execution import Execution
from runner.host.facts import Collected, collect
from runner.host.reading import Reader
from runner.host.receiving import Receiving
from runner.host.records import closed, prepare
from runner.host.supervisor import HEARD, KILL, STOP
from runner.host.work import Steps, Work

SILENCE_S = 60.0
"""A link that hears nothing for so long has no controller any more, whatever TCP says.

Once a run is on, its `disconnect_s` counts: then the supervisor gives the controller up as well.
"""

LOOK_S = 0.25
MAX_UNSENT = 4 << 20
"""Bytes waiting for the controller beyond which no more output of a command is read."""

BUSY_S, IDLE_S = 0.02, 0.05
READY_S = 20.0


class Following:
    """A run on this host as a link sees it: its files, and its supervisor's doorway."""

    def __init__(self, folder: RunFolder, order: Order) -> None:
        self.reader = Reader(folder)
        self.over = False
        self._folder = folder
        self._order = order
        self._doorway = Doorway(order.run_id, order.node)
        self._door = self._doorway.connect()

    def tell(self, word: bytes) -> None:
        """Say one of `HEARD`, `STOP`, `KILL` to the supervisor, if it is there."""
        if self._door is not None:
            try:
                self._door.send(word)
            except OSError:
                self._door = None

    def look(self) -> None:
        """See whether the supervisor ended; if nobody closed its record, do so."""
        if self.over or (self._door is not None and not _hung_up(self._door)):
            return
        self._door = None
        lock = self._doorway.lock()
        if lock is None:
            return
        if not closed(self._folder, self._order):
            order = self._order
            marks = {f"RUNNER_RUN_ID={order.run_id}", f"RUNNER_NODE={order.node}"}
            reason = "its supervisor and its guardian died; what still had its mark was killed"
            guardian.close_record(
                self._folder, order, reason, lambda: proc.marked(marks), proven=False
            )
        self._doorway.remove()
        os.close(lock)
        self.over = True


class Link:
    """One conversation with one controller about one node."""

    def __init__(self, inbound: int, outbound: int, shim_code: str) -> None:
        self._in, self._out = inbound, outbound
        self._shim_code = shim_code
        self._unpacker = Unpacker()
        self._unsent = bytearray()
        self._heard = time.monotonic()
        self._silence_s = SILENCE_S
        self._known: Optional[Collected] = None
        self._receiving: Optional[Receiving] = None
        self._run: Optional[Following] = None
        self._execution: Optional[Execution] = None
        self._work = Work(self._reply, lambda frame, why: self._refuse(frame, _said(why)))
        self._handlers: Dict[str, Callable[[Frame], None]] = {
            "facts": self._facts,
            "hold": self._hold,
            "manifest": lambda frame: self._work.add(frame, self._asked_receiving().offered(frame)),
            "piece": lambda frame: self._work.add(frame, self._asked_receiving().piece(frame)),
            "finish": lambda frame: self._work.add(frame, self._asked_receiving().finished(frame)),
            "drop": lambda _: self._asked_receiving().drop(),
            "go": lambda frame: self._work.add(frame, self._go(frame)),
            "adopt": self._adopt,
            "read": self._read,
            "say": self._say,
            "ping": self._ping,
            "exec": self._exec,
            "clean": lambda frame: self._work.add(frame, self._clean(frame)),
            "kill": lambda _: self._execution.kill() if self._execution else None,
        }

    def serve(self) -> None:
        """Answer until the controller goes away."""
        for descriptor in (self._in, self._out):
            os.set_blocking(descriptor, False)
        self._unsent += MAGIC
        self._reply("hello", {"protocol": PROTOCOL, "pid": os.getpid(), **_clocks()})
        try:
            while time.monotonic() - self._heard < self._silence_s and self._wait():
                self._work.advance()
                if self._execution is not None and len(self._unsent) < MAX_UNSENT:
                    self._execution.advance()
                if self._run is not None:
                    self._run.look()
                    for data, payload in self._run.reader.answers(over=self._run.over):
                        self._reply("data", data, payload)
        finally:
            self._work.give_up("the controller left")
            if self._receiving is not None:
                self._receiving.drop()
            if self._execution is not None:
                self._execution.end()

    def _wait(self) -> bool:
        """Sleep until there is something to do; False when the controller has left."""
        idle = self._run is None or self._run.reader.idle
        patience = 0.0 if self._work else IDLE_S if idle else BUSY_S
        writable = [self._out] if self._unsent else []
        readable = [] if self._work.full else [self._in]
        if self._execution is not None and len(self._unsent) < MAX_UNSENT:
            readable += self._execution.pipes
        ready = select.select(readable, writable, [], patience)
        try:
            if ready[1]:
                sent = os.write(self._out, memoryview(self._unsent)[: 1 << 20])
                del self._unsent[:sent]
            if self._work.full:
                self._heard = time.monotonic()  # we do not listen
            if self._in in ready[0]:
                chunk = os.read(self._in, 1 << 18)
                if not chunk:
                    return False
                self._heard = time.monotonic()
                for frame in self._unpacker.feed(chunk):
                    self._dispatch(frame)
                    self._heard = time.monotonic()  # some answers take longer than our patience
        except BlockingIOError:
            pass
        except OSError:
            return False
        return True

    def _dispatch(self, frame: Frame) -> None:
        handler = self._handlers.get(frame.kind)
        if handler is None:
            self._refuse(frame, f"this link knows no request {frame.kind!r}")
            return
        try:
            handler(frame)
        except Exception as error:  # noqa: BLE001 (the controller is told, whatever it is)
            self._refuse(frame, _said(error))

    def _reply(self, kind: str, data: Dict[str, Any], payload: bytes = b"") -> None:
        self._unsent += Frame(kind, data, payload).pack()

    def _refuse(self, frame: Frame, why: str) -> None:
        self._reply("refused", {"id": frame.data.get("id"), "why": why})

    def _facts(self, frame: Frame) -> None:
        request = decode(FactsRequest, frame.data["request"])
        with _giving_up_with(self._in):
            known = self._known = collect(request)
        own = {name: known.environ[name] for name in OUR_ENV if name in known.environ}
        there = RunFolder(known.facts.workdir, request.run_id, request.node).root
        self._receiving = Receiving(known.facts.workdir, self._reply)
        whole = known.facts.release_held and self._receiving.hold(request.release)
        there_now = os.path.isdir(there)
        facts = replace(known.facts, own_env=own, run_there=there_now, release_held=whole)
        self._reply("facts", {"id": frame.data["id"], "facts": encode(facts), **_clocks()})

    def _hold(self, frame: Frame) -> None:
        """Reserve another port than the one that was taken."""
        known = self._asked()
        held, error = ports.reserve(frame.data["first"], frame.data["last"])
        self._known = replace(known, held=held)
        port = held.getsockname()[1] if held else 0
        self._reply("held", {"id": frame.data["id"], "port": port, "error": error})

    def _go(self, frame: Frame) -> Steps:
        known = self._asked()
        order = decode(Order, frame.data["order"])
        if frame.data.get("tasks"):
            tasks.store(known.facts.workdir, frame.data["tasks"], frame.payload)
        folder = RunFolder(order.workdir, order.run_id, order.node)
        prepare(folder, order, self._shim_code)
        if order.release and order.attempt == 0:  # a later attempt goes on in the same folder
            try:
                yield from check_out(order.workdir, order.release, folder.work)
            except BaseException:
                shutil.rmtree(folder.root, ignore_errors=True)  # nothing was started
                raise
        self._spawn(frame, folder, order)

    def _spawn(self, frame: Frame, folder: RunFolder, order: Order) -> None:
        known = self._asked()
        # A host's own PET_* would be options of torchrun's behind the back of the order.
        own = {name: value for name, value in known.environ.items() if name[:4] != "PET_"}
        environ = {**own, **frame.data.get("secrets", {})}
        pipe = guardian.spawn(folder, order, environ, known.held)
        if known.held is not None:
            known.held.close()
            self._known = replace(known, held=None)
        said = _read_all(pipe, READY_S)
        if said != guardian.READY:
            why = said.decode(errors="replace") or f"no supervisor within {READY_S:g} s"
            self._refuse(frame, why)
            return
        self._follow(folder, order)
        self._reply("going", {"id": frame.data["id"]})

    def _asked(self) -> Collected:
        if self._known is None:
            raise RuntimeError("this link has not reported its facts yet")
        return self._known

    def _asked_receiving(self) -> Receiving:
        if self._receiving is None:
            raise RuntimeError("this link has not reported its facts yet")
        return self._receiving

    def _adopt(self, frame: Frame) -> None:
        """Speak to a supervisor that another link started."""
        order = decode(Order, frame.data["order"])
        self._follow(RunFolder(order.workdir, order.run_id, order.node), order)
        self._reply("going", {"id": frame.data["id"]})

    def _follow(self, folder: RunFolder, order: Order) -> None:
        self._run = Following(folder, order)
        self._silence_s = order.disconnect_s

    def _following(self) -> Following:
        if self._run is None:
            raise RuntimeError("this link follows no run yet")
        return self._run

    def _read(self, frame: Frame) -> None:
        self._following().reader.ask(frame.data)

    def _say(self, frame: Frame) -> None:
        if self._work:
            self._work.give_up("it was told to stop before its start")
            return
        self._following().tell({"stop": STOP, "kill": KILL}[frame.data["word"]])
        self._reply("said", {"id": frame.data["id"]})

    def _ping(self, frame: Frame) -> None:
        if self._run is not None:
            self._run.tell(HEARD)
        self._reply("pong", {"id": frame.data["id"], **_clocks()})

    def _clean(self, frame: Frame) -> Steps:
        ask, workdir = frame.data, self._asked().facts.workdir
        gone = yield from clean(
            workdir, ask["node"], float(ask["older_than_s"]), dry_run=bool(ask["dry_run"])
        )
        self._reply("cleaned", {"id": ask["id"], **gone})

    def _exec(self, frame: Frame) -> None:
        """Run a command as the task would be: in the environment that the setup lines left."""
        argv, limit_s = list(frame.data["argv"]), float(frame.data["limit_s"])
        environ = self._asked().environ
        self._execution = Execution(frame.data["id"], argv, environ, limit_s, self._reply)


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


def _said(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}{f' ({error.filename})' if error.filename else ''}"
    return str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


def _clocks() -> Dict[str, float]:
    return {"mono": time.monotonic(), "wall": time.time()}


def _hung_up(door: socket.socket) -> bool:
    if not select.select([door], [], [], 0)[0]:
        return False
    try:
        return not door.recv(4096)
    except OSError:
        return True


def _read_all(pipe: int, deadline_s: float) -> bytes:
    said, end = b"", time.monotonic() + deadline_s
    while select.select([pipe], [], [], max(0.0, end - time.monotonic()))[0]:
        chunk = os.read(pipe, 65536)
        if not chunk:
            break
        said += chunk
    os.close(pipe)
    return said


def main(shim_code: str) -> NoReturn:
    """Take over the standard streams and serve; nothing else may write to them."""
    inbound, outbound = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    Link(inbound, outbound, shim_code).serve()
    sys.exit(0)
