"""What a link does with runs in general: list them, show one's record, prove its end, clean up."""

from __future__ import annotations

import contextlib
import json
import os
import time
import zlib

from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import RunPaths, validated_paths
from runner.host.agent.handler import HandlerTable, RequestHandler
from runner.host.process.job_queue import Steps
from runner.host.process.kill import kill_until_gone, reap_all
from runner.host.storage import run_owner
from runner.host.storage.garbage import collect_garbage
from runner.host.storage.run_list import list_runs
from runner.host.storage.run_lock import RunLock
from runner.host.supervisor.recovery import find_leftovers, recover_unfinished


class RunsHandler(RequestHandler):
    """Requests about runs of this host that need no order."""

    def handlers(self) -> HandlerTable:
        """Return what answers each kind of request."""
        jobs = self.context.jobs
        return {
            "clean": lambda frame: jobs.add(frame, self._collect_garbage(frame)),
            "runs": lambda frame: jobs.add(frame, self._list_runs(frame)),
            "run": self._send_record,
            "kill_leftovers": self._kill_leftovers,
            "mark_relaunch_pending": self._mark_relaunch_pending,
        }

    def _list_runs(self, frame: Frame) -> Steps:
        request = frame.data
        listing = yield from list_runs(
            self.context.workdir, request["node"], request.get("run_id", "")
        )
        self.context.reply("runs", {"id": request["id"], **listing})

    def _send_record(self, frame: Frame) -> None:
        """Send the order, and what is on record of the whole run."""
        request = frame.data
        folder = validated_paths(self.context.workdir, request["run_id"], request["node"])
        if not os.path.isdir(folder.root):
            raise ValueError(f"there is no run {request['run_id']} in {self.context.workdir}")
        texts = {}
        for name in ("order", "plan", "config", "info"):
            with contextlib.suppress(OSError), open(vars(folder)[name], encoding="utf-8") as file:
                texts[name] = file.read()
        packed = zlib.compress(json.dumps(texts).encode(), 1)
        self.context.reply("run", {"id": request["id"]}, packed)

    def _mark_relaunch_pending(self, frame: Frame) -> None:
        """Take it for so long that another attempt follows; say whether somebody wants none."""
        request = frame.data
        folder = validated_paths(self.context.workdir, request["run_id"], request["node"])
        until = time.time() + float(request.get("for_s", 0))
        with open(folder.relaunch_marker, "w", encoding="ascii"):
            pass
        os.utime(folder.relaunch_marker, (until, until))
        self.context.reply(
            "relaunch_pending",
            {"id": request["id"], "stop_requested": os.path.lexists(folder.stop_marker)},
        )

    def _kill_leftovers(self, frame: Frame) -> None:
        """Kill what is left of a run whose supervisor is gone, and say what could not be.

        Whoever asks wants it to be over: no other attempt of it begins here.
        """
        request = frame.data
        folder = validated_paths(self.context.workdir, request["run_id"], request["node"])
        run_owner.require_local(folder)
        with contextlib.suppress(OSError), open(folder.stop_marker, "w", encoding="ascii"):
            pass  # a full disk has no room for another attempt either
        scan, cgroup = find_leftovers(folder, request["run_id"], request["node"])
        killed, survivors = kill_until_gone(scan, reap_all, cgroup=cgroup)
        if not survivors:
            _finalise_record(folder, RunLock(request["run_id"], request["node"]))
        reply = {"killed": len(killed), "survivors": list(survivors)}
        self.context.reply("leftovers", {"id": request["id"], **reply})

    def _collect_garbage(self, frame: Frame) -> Steps:
        request = frame.data
        removed = yield from collect_garbage(
            self.context.workdir,
            request["node"],
            float(request["older_than_s"]),
            dry_run=bool(request["dry_run"]),
        )
        self.context.reply("cleaned", {"id": request["id"], **removed})


def _finalise_record(folder: RunPaths, run_lock: RunLock) -> None:
    """Close the record of what died with its host, which may not have been asked since."""
    lock = run_lock.try_lock()
    if lock is None:  # it lives
        return
    try:
        if not run_owner.live_owner_pids(folder):
            recover_unfinished(folder)
            run_lock.remove_files()
    finally:
        os.close(lock)
