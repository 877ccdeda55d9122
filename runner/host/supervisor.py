"""The supervisor: starts what its order says, keeps its record, and guarantees its death.

It knows nothing of torchrun. One thread, one loop; children are reaped in one place; it ends
when nothing of the run is left, or when what is left has outlived SIGKILL.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import time
from typing import Any, Callable, Dict, Optional, Set, Tuple

from runner.core.events import (
    HURRIED,
    TOLD,
    Ended,
    PortTaken,
    ProgramExited,
    ProgramStarted,
    RankExited,
    RankStarted,
    Stopping,
)
from runner.core.layout import PROGRAM, RunFolder
from runner.core.order import Order
from runner.core.states import State
from runner.host import ports, proc
from runner.host.doorway import Doorway
from runner.host.ending import kill_all, reap_all
from runner.host.records import BALLAST, Journal, rank_records

TICK_S = 0.05
PORT_LOOK_S = 0.5
"""How often to see who listens on the port: /proc/net/tcp costs milliseconds to read."""
HEARD, STOP, KILL = b"h", b"s", b"k"
"""What a link may say through the doorway, one byte each."""


class Supervisor:
    """One run on one host, from its order to its last event."""

    def __init__(
        self,
        folder: RunFolder,
        order: Order,
        environ: Dict[str, str],
        doorway: Doorway,
        held: Optional[socket.socket],
    ) -> None:
        self.order = order
        self._folder = folder
        self._environ = environ
        self._doorway = doorway
        self._held = held
        self._journal = Journal(folder, order)
        self._selector = selectors.DefaultSelector()
        self._program: Optional[subprocess.Popen[bytes]] = None
        self._program_end: Optional[Tuple[Optional[int], Optional[int]]] = None
        self._seen: Set[str] = set()
        self._shims: Dict[int, int] = {}
        self._exited: Set[int] = set()
        self._heard = time.monotonic()
        self._stop_reason = ""
        self._kill_at: Optional[float] = None
        self._termed: Set[int] = set()
        self._signalled = False
        self._next_port_look = time.monotonic() + PORT_LOOK_S

    def run(self, ready: Callable[[], None]) -> State:
        """Carry out the order; `ready` is called once it can be spoken to; return how it ended."""
        proc.become_subreaper()
        self._listen()
        self._start()
        ready()
        while not self._over():
            for key, _ in self._selector.select(TICK_S):
                key.data()
            self._tick()
        return self._end()

    def stop(self, reason: str) -> None:
        """Begin the ladder: TERM to the program alone (it forwards), KILL after the grace."""
        if self._stop_reason:
            return
        self._stop_reason = reason
        self._kill_at = time.monotonic() + self.order.grace_s
        self._journal.append(Stopping(reason))
        if self._journal.state is not State.STOPPING:
            self._journal.enter(State.STOPPING)
        if self._program is not None and self._program_end is None:
            self._termed |= proc.send([self._program.pid], signal.SIGTERM)

    def hurry(self) -> None:
        """Skip what is left of the grace."""
        self.stop(HURRIED)
        self._kill_at = time.monotonic()

    def _listen(self) -> None:
        reading, writing = os.pipe()
        for descriptor in (reading, writing):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._note_signal)
        for signum in (signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
        self._watch(reading, lambda: os.read(reading, 4096))
        listener = self._doorway.listen()
        self._watch(listener.fileno(), lambda: self._admit(listener))

    def _note_signal(self, *_: Any) -> None:
        self._signalled = True

    def _watch(self, descriptor: int, handler: Callable[[], Any]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, handler)

    def _admit(self, listener: socket.socket) -> None:
        link, _ = listener.accept()
        link.setblocking(False)
        self._heard = time.monotonic()
        self._watch(link.fileno(), lambda: self._listen_to(link))

    def _listen_to(self, link: socket.socket) -> None:
        try:
            said = link.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if not said:
            self._selector.unregister(link.fileno())
            link.close()
            return
        self._heard = time.monotonic()
        if KILL in said:
            self.hurry()
        elif STOP in said:
            self.stop(TOLD)

    def _start(self) -> None:
        order, folder = self.order, self._folder
        try:
            out, err = (
                os.open(folder.stream(order.attempt, PROGRAM, stream), _APPEND, 0o600)
                for stream in ("out", "err")
            )
            self._program = subprocess.Popen(
                order.argv,
                env={**self._environ, **order.env},
                cwd=order.cwd,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=_before_exec,  # noqa: PLW1509 (this process has one thread)
            )
        except OSError as error:
            what = f"cannot start {order.argv[0]} in {order.cwd}: {error.strerror}"
            self._journal.append(ProgramExited(error=what))
            self._program_end = (None, None)
            return
        os.close(out)
        os.close(err)
        self._journal.append(ProgramStarted(self._program.pid))
        self._journal.enter(State.RUNNING)

    def _tick(self) -> None:
        self._note_ranks()
        if time.monotonic() >= self._next_port_look:
            self._next_port_look = time.monotonic() + PORT_LOOK_S
            self._hand_over_port()
        self._reap()
        if self._signalled:
            self.stop("its supervisor was told to end, or lost its guardian")
        if self._journal.failed:
            self.stop(self._journal.failed)
        now = time.monotonic()
        if now - self._heard > self.order.disconnect_s:
            self.stop(f"no controller was heard for {self.order.disconnect_s:g} s")
        if self._program_end is not None:
            self._end_leftovers(now)

    def _note_ranks(self) -> None:
        attempt = self._folder.attempt(self.order.attempt)
        for kind, rank, data in rank_records(attempt, self._seen):
            if kind == "start":
                self._shims[rank] = int(data["shim"])
                body = RankStarted(rank, int(data["pid"]))
                self._journal.append(body, mono=float(data["mono"]), wall=float(data["wall"]))
            else:
                self._exited.add(rank)
                self._journal.append_exit(rank, data)

    def _reap(self) -> None:
        for pid, status in reap_all():
            if self._program is None or pid != self._program.pid:
                continue
            signum = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
            code = None if signum else os.WEXITSTATUS(status)
            self._program.returncode = -signum if signum else code
            self._program_end = (code, signum)
            self._hand_over_port()  # first: that it was taken may be why the program ended
            self._note_ranks()
            self._note_unseen()
            self._journal.append(ProgramExited(code, signum))

    def _note_unseen(self) -> None:
        """Ranks whose shim is gone without a word: nobody saw how they ended."""
        alive = proc.descendants(os.getpid())
        for rank, shim in sorted(self._shims.items()):
            if rank not in self._exited and shim not in alive:
                self._exited.add(rank)
                self._journal.append(RankExited(rank, error=self._why_unseen()))

    def _why_unseen(self) -> str:
        free = os.statvfs(self._folder.root)
        if free.f_bavail * free.f_frsize >= BALLAST:
            return ""
        return f"ended, and could not record how: No space left in {self._folder.root}"

    def _hand_over_port(self) -> None:
        """Let go of the port once the program listens on it, or once somebody else does."""
        if self._held is None:
            return
        inodes = ports.listening(self.order.hold_port)
        if not inodes:
            return
        ours = ports.owners(inodes, proc.descendants(os.getpid()))
        self._held.close()
        self._held = None
        if not ours:
            pids = tuple(sorted(ports.owners(inodes, list(proc.table()))))
            self._journal.append(PortTaken(self.order.hold_port, pids))
            self.stop("the master's port was taken")

    def _end_leftovers(self, now: float) -> None:
        """The program is gone: what it left behind gets TERM once, and the rest of the grace."""
        left = proc.descendants(os.getpid())
        if left and self._kill_at is None:
            self._kill_at = now + self.order.grace_s
            self._journal.enter(State.STOPPING)
        self._termed |= proc.send(set(left) - self._termed, signal.SIGTERM)

    def _over(self) -> bool:
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            return True
        return self._program_end is not None and not proc.descendants(os.getpid())

    def _end(self) -> State:
        shims = set(self._shims.values())
        killed, survivors = kill_all(lambda: proc.descendants(os.getpid()), self._reap, shims)
        self._note_ranks()
        self._note_unseen()
        if survivors:
            state = State.STUCK
        elif self._program_end == (0, None):
            state = State.SUCCEEDED
        else:
            state = State.STOPPED if self._stop_reason else State.FAILED
        reason = self._journal.failed or self._stop_reason
        self._journal.end(Ended(state, reason, len(killed), survivors))
        return state


_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND


def _before_exec() -> None:
    proc.die_with_parent(signal.SIGTERM)
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(signum, signal.SIG_DFL)
