"""One run on this host as a link sees it: its files, and the door of its supervisor."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from typing import Any, Dict, List, Optional

from runner.core.codec import decode
from runner.core.model.order import Order
from runner.core.protocol.events import Cause
from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import RunFolder
from runner.host.agent.handler import Duty, Handlers, Wire
from runner.host.agent.log_reader import Reader
from runner.host.process import procfs
from runner.host.process.kill import KILL_S
from runner.host.storage import run_owner
from runner.host.storage.run_folder import claim, closed, read_format, read_order, regrouping
from runner.host.storage.run_lock import Doorway

OLD_WORDS = {"heard": b"h", "stop": b"s", "kill": b"k"}
"""What supervisors of format 1 understand, a byte each."""

MORE = ("cause", "reason", "peer", "nodes")
"""What may be said with a word."""

KNOCK_S, SOON_S = 2.0, 0.2
"""How often a door is tried that nobody opens; with something to say, soon again."""

DEAF_S = KILL_S + 3.0
"""What a supervisor's ladder may take beyond the grace before it is taken for stopped or stuck."""


class Followed:
    """A run whose supervisor is spoken to, and whose end is seen to.

    Attributes:
        quiet: Whether it is only read: then nobody is told that we are here, and what two dead
            keepers left is left alone.
    """

    def __init__(self, folder: RunFolder, order: Order, *, quiet: bool = False) -> None:
        self.reader = Reader(folder)
        self.over = False
        self.quiet = quiet
        self._folder = folder
        self._order = order
        self._doorway = Doorway(order.run_id, order.node)
        self._door = self._doorway.connect()
        self._next_knock = 0.0
        self._old = read_format(folder) == 1
        self._deaf_at: Optional[float] = None
        self._wished = False
        self.over = self._passed  # whoever is at the door hears of a stop all the same
        self._untold: List[bytes] = []

    def tell(self, word: str, **more: Any) -> None:
        """Say something to the supervisor: that we are here, if it is; all else until it hears."""
        now = time.monotonic()
        self._wished = self._wished or more.get("cause") == Cause.USER.value
        if word == "stop" and self._deaf_at is None:
            self._deaf_at = now + self._order.grace_s + DEAF_S
        elif word == "kill":
            self._deaf_at = min(self._deaf_at or now + DEAF_S, now + DEAF_S)
        about = {"say": word, "attempt": self._order.attempt}
        line = json.dumps({**about, **more}).encode() + b"\n"
        said = OLD_WORDS.get(word, b"") if self._old else line
        if word != "heard":
            self._untold.append(said)
            self._next_knock = 0.0
        elif not self._untold:
            self._send(said)
        self._tell_again()

    def _tell_again(self) -> None:
        while self._untold and self._send(self._untold[0]):
            del self._untold[0]

    def _send(self, said: bytes) -> bool:
        if self._door is None:
            return False
        try:
            return self._door.send(said) == len(said)
        except BlockingIOError:
            return False  # it takes nothing: stopped, or stuck
        except OSError:
            self._door = None
            return False

    def close(self) -> None:
        """Say no more."""
        if self._door is not None:
            self._door.close()
            self._door = None

    def look(self) -> None:
        """See whether the supervisor ended; if nobody closed its record, do so."""
        if self.over:
            return
        if self._door is not None and not self._doorway.hung_up(self._door):
            self._tell_again()
            self._end_the_deaf()
            return
        self._door = None
        lock = self._doorway.lock()
        if lock is None and self._passed and not self._untold:
            self.over = True
            return
        if lock is None:  # its guardian may be at it, or its door was too full
            self._end_the_deaf()
            self.knock()
            return
        if run_owner.keepers(self._folder):  # somebody emptied /tmp: soon there is a new door
            os.close(lock)
            self._end_the_deaf()
            self.knock()
            return
        if not self.quiet and not closed(self._folder, self._order):
            from runner.host.supervisor import (
                guardian,  # no look at a host shall wait for this code
            )

            guardian.close_after_both(self._folder, self._order)
        self._doorway.remove()
        os.close(lock)
        self.over = True

    @property
    def _passed(self) -> bool:
        """Whether this attempt is over, and another one on in its place."""
        if not self._order.relaunches:
            return False
        now = read_order(self._folder)
        return now is not None and now.attempt > self._order.attempt

    def knock(self, *, at_once: bool = False) -> None:
        """Try the door now and then, or `at_once`."""
        now = time.monotonic()
        if at_once or now >= self._next_knock:
            self._next_knock = now + (SOON_S if self._untold else KNOCK_S)
            self._door = self._doorway.connect()
            self._tell_again()

    def _end_the_deaf(self) -> None:
        """Kill a supervisor that was told to stop and did not, then its guardian.

        A process that was stopped or hangs in the kernel hears nothing; the kernel drops its lock
        when it dies, and the next one to look closes the record.
        """
        if self._deaf_at is None or time.monotonic() < self._deaf_at:
            return
        self._deaf_at = time.monotonic() + DEAF_S
        if not self._wished and regrouping(self._folder, self._order):
            return  # its part is ended; it waits for the others
        holders = self._doorway.holders() or run_owner.keepers(self._folder)
        processes = procfs.table()
        youngest = [
            pid for pid in holders if not any(p.ppid == pid for p in _of(processes, holders))
        ]
        procfs.send(youngest, signal.SIGKILL)
        procfs.send(holders, signal.SIGCONT)


def _of(processes: Dict[int, procfs.Process], pids: Any) -> Any:
    return [processes[pid] for pid in pids if pid in processes]


class Following(Duty):
    """The run that this link's controller follows."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self._run: Optional[Followed] = None

    def handlers(self) -> Handlers:
        """Return what answers each kind of request."""
        return {
            "adopt": self._adopt,
            "read": lambda frame: self._asked().reader.ask(frame.data),
            "say": self._say,
            "ping": self._ping,
        }

    @property
    def busy(self) -> bool:
        """Whether something of the run may be new."""
        return self._run is not None and not self._run.reader.idle

    def advance(self) -> None:
        """See to the run's end, and answer what can be answered."""
        if self._run is None:
            return
        with contextlib.suppress(OSError):  # a disk that hangs up for a moment
            self._run.look()
        for data, payload in self._run.reader.answers(over=self._run.over):
            self.wire.reply("data", data, payload)

    def follow(self, folder: RunFolder, order: Order, *, quiet: bool = False) -> None:
        """Speak to the supervisor of a run from now on, or only read."""
        self._run = Followed(folder, order, quiet=quiet)
        self.wire.place = order.workdir
        if order.disconnect_s:  # then the supervisor gives the controller up as well
            self.wire.silence_s = min(self.wire.silence_s, order.disconnect_s)

    def knock(self) -> None:
        """Try the supervisor's door: it should be there by now."""
        self._asked().knock(at_once=True)

    def stop(self, reason: str, cause: Cause) -> None:
        """End the run that is followed."""
        self._asked().tell("stop", reason=reason, cause=cause.value)

    def _adopt(self, frame: Frame) -> None:
        """Follow a run that another link started, or was to start."""
        order = decode(Order, frame.data["order"])
        folder = RunFolder(order.workdir, order.run_id, order.node)
        if frame.data.get("claim") and claim(folder, order.attempt):
            self.wire.refuse(frame, "its order had not arrived")
            return
        if not os.path.isdir(folder.root):
            self.wire.refuse(frame, f"there is no run {order.run_id} in {order.workdir}")
            return
        if not os.path.isdir(folder.attempt(order.attempt)):
            self.wire.refuse(frame, f"attempt {order.attempt} of it has not begun here")
            return
        run_owner.refuse_elsewhere(folder)
        self.follow(folder, order, quiet=bool(frame.data.get("quiet")))
        self.wire.reply("going", {"id": frame.data["id"]})

    def _asked(self) -> Followed:
        if self._run is None:
            raise RuntimeError("this link follows no run yet")
        return self._run

    def _say(self, frame: Frame) -> None:
        word = frame.data["word"]
        if self.wire.work and self._run is None and word != "keep":
            self.wire.work.give_up("it was told to stop before its start")
            return
        more = {name: frame.data[name] for name in MORE if name in frame.data}
        self._asked().tell(word, **more)
        self.wire.reply("said", {"id": frame.data["id"]})

    def _ping(self, frame: Frame) -> None:
        if self._run is not None and not self._run.quiet:
            self._run.tell("heard")
        clocks = {"mono": time.monotonic(), "wall": time.time()}
        self.wire.reply("pong", {"id": frame.data["id"], **clocks})
