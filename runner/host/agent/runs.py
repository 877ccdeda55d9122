"""What a link does with runs in general: list them, show one's record, prove its end, clean up."""

from __future__ import annotations

import contextlib
import json
import os
import time
import zlib

from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import RunFolder, folder_of
from runner.host.agent.handler import Duty, Handlers
from runner.host.process.job_queue import Steps
from runner.host.process.kill import kill_all, reap_all
from runner.host.storage import run_owner
from runner.host.storage.garbage import clean
from runner.host.storage.run_list import runs
from runner.host.storage.run_lock import Doorway
from runner.host.supervisor.guardian import close_unended, leftovers


class Keeping(Duty):
    """Requests about runs of this host that need no order."""

    def handlers(self) -> Handlers:
        """Return what answers each kind of request."""
        work = self.wire.work
        return {
            "clean": lambda frame: work.add(frame, self._clean(frame)),
            "runs": lambda frame: work.add(frame, self._runs(frame)),
            "run": self._run,
            "prove": self._prove,
            "wait": self._wait,
        }

    def _runs(self, frame: Frame) -> Steps:
        ask = frame.data
        found = yield from runs(self.wire.workdir, ask["node"], ask.get("run_id", ""))
        self.wire.reply("runs", {"id": ask["id"], **found})

    def _run(self, frame: Frame) -> None:
        """Send the order, and what is on record of the whole run; format 1 has the order alone."""
        ask = frame.data
        folder = folder_of(self.wire.workdir, ask["run_id"], ask["node"])
        if not os.path.isdir(folder.root):
            raise ValueError(f"there is no run {ask['run_id']} in {self.wire.workdir}")
        told = {}
        for name in ("order", "plan", "config", "info"):
            with contextlib.suppress(OSError), open(vars(folder)[name], encoding="utf-8") as file:
                told[name] = file.read()
        packed = zlib.compress(json.dumps(told).encode(), 1)
        self.wire.reply("run", {"id": ask["id"]}, packed)

    def _wait(self, frame: Frame) -> None:
        """Take it for so long that another attempt follows; say whether somebody wants none."""
        ask = frame.data
        folder = folder_of(self.wire.workdir, ask["run_id"], ask["node"])
        until = time.time() + float(ask.get("for_s", 0))
        with open(folder.waiting, "w", encoding="ascii"):
            pass
        os.utime(folder.waiting, (until, until))
        self.wire.reply("waits", {"id": ask["id"], "stopped": os.path.lexists(folder.stopped)})

    def _prove(self, frame: Frame) -> None:
        """Kill what is left of a run whose supervisor is gone, and say what could not be.

        Whoever asks wants it to be over: no other attempt of it begins here.
        """
        ask = frame.data
        folder = folder_of(self.wire.workdir, ask["run_id"], ask["node"])
        run_owner.refuse_elsewhere(folder)
        with contextlib.suppress(OSError), open(folder.stopped, "w", encoding="ascii"):
            pass  # a full disk has no room for another attempt either
        look, home = leftovers(folder, ask["run_id"], ask["node"])
        killed, survivors = kill_all(look, reap_all, cgroup=home)
        if not survivors:
            _close(folder, Doorway(ask["run_id"], ask["node"]))
        told = {"killed": len(killed), "survivors": list(survivors)}
        self.wire.reply("proven", {"id": ask["id"], **told})

    def _clean(self, frame: Frame) -> Steps:
        ask = frame.data
        gone = yield from clean(
            self.wire.workdir, ask["node"], float(ask["older_than_s"]), dry_run=bool(ask["dry_run"])
        )
        self.wire.reply("cleaned", {"id": ask["id"], **gone})


def _close(folder: RunFolder, doorway: Doorway) -> None:
    """Close the record of what died with its host, which may not have been asked since."""
    lock = doorway.lock()
    if lock is None:  # it lives
        return
    try:
        if not run_owner.keepers(folder):
            close_unended(folder)
            doorway.remove()
    finally:
        os.close(lock)
