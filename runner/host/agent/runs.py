"""Run requests: what is on record here of runs, its removal, and the end of what a run left."""

from __future__ import annotations

import contextlib
import json
import os
import time
import zlib

from runner.core.wire.codec import Frame
from runner.host.agent.server import RequestHandler
from runner.host.process.subreaper import kill_until_gone
from runner.host.storage import run_owner
from runner.host.storage.garbage import collect_garbage, remove_left_container
from runner.host.storage.run_folder import make_marker
from runner.host.storage.run_list import list_runs
from runner.host.supervisor.recovery import find_leftovers, recover_unfinished


class Handler(RequestHandler):
    def on_runs(self, frame: Frame) -> None:
        """List the runs of this host, or one of them; `others` are asked, too."""
        node = frame.data["node"]
        run_id = frame.data.get("run_id", "")
        others = frame.data.get("others", ())
        workdir = self.agent.workdir
        self.agent.answer(frame, "runs", **list_runs(workdir, node, others, run_id))

    def on_run(self, frame: Frame) -> None:
        folder = self.agent.run_folder(frame)
        if not os.path.isdir(folder.root):
            raise ValueError(f"there is no run {frame.data['run_id']} in {self.agent.workdir}")
        texts = {}
        for name in ("order", "plan", "config", "info"):
            with contextlib.suppress(OSError), open(vars(folder)[name], encoding="utf-8") as file:
                texts[name] = file.read()
        self.agent.answer(frame, "run", zlib.compress(json.dumps(texts).encode(), 1))

    def on_mark_relaunch_pending(self, frame: Frame) -> None:
        """Mark that a relaunch follows within `for_s`; reply whether a stop was requested."""
        folder = self.agent.run_folder(frame)
        make_marker(folder.relaunch_marker, time.time() + float(frame.data.get("for_s", 0)))
        stop_requested = os.path.lexists(folder.stop_marker)
        self.agent.answer(frame, "relaunch_pending", stop_requested=stop_requested)

    def on_clean(self, frame: Frame) -> None:
        """Remove ended runs and unused releases; of the runs, `only` those named."""
        removed = collect_garbage(
            self.agent.workdir,
            frame.data["node"],
            float(frame.data["older_than_s"]),
            frame.data.get("others", ()),
            frame.data.get("only"),
            dry_run=bool(frame.data["dry_run"]),
            with_kept=bool(frame.data["with_kept"]),
        )
        self.agent.answer(frame, "cleaned", **removed)

    def on_kill_leftovers(self, frame: Frame) -> None:
        """Kill what a run left after its supervisor died, name survivors, complete its record.

        Raise ValueError if a container may be left. The request ends the run: no other attempt of
        it begins here.
        """
        folder = self.agent.run_folder(frame)
        run_owner.require_local(folder)
        with contextlib.suppress(OSError):  # a full disk has no room for another attempt either
            make_marker(folder.stop_marker)
        scan = find_leftovers(folder, frame.data["run_id"], frame.data["node"])
        killed, survivors, _ = kill_until_gone(scan)
        lock = None if survivors else run_owner.take_over(folder)
        if lock is not None:  # it is not alive after all
            with lock:
                recover_unfinished(folder)
                if problem := remove_left_container(folder):
                    raise ValueError(problem)
        self.agent.answer(frame, "leftovers", killed=len(killed), survivors=list(survivors))
