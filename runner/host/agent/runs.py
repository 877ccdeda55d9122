"""Run requests: list the runs of this host, show one's record, mark that a relaunch is pending."""

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
from runner.host.storage.run_list import list_runs


class Handler(RequestHandler):
    """Answers from run folders alone."""

    def handlers(self) -> HandlerTable:
        """Return the function for each kind of request."""
        return {
            "runs": lambda frame: self.context.jobs.add(frame, self._list_runs(frame)),
            "run": self._send_record,
            "mark_relaunch_pending": self._mark_relaunch_pending,
        }

    def _folder(self, frame: Frame) -> RunPaths:
        return validated_paths(self.context.workdir, frame.data["run_id"], frame.data["node"])

    def _list_runs(self, frame: Frame) -> Steps:
        node, run_id = frame.data["node"], frame.data.get("run_id", "")
        listing = yield from list_runs(self.context.workdir, node, run_id)
        self.context.reply("runs", {"id": frame.data["id"], **listing})

    def _send_record(self, frame: Frame) -> None:
        """Send the order, and what is on record of the whole run."""
        folder = self._folder(frame)
        if not os.path.isdir(folder.root):
            raise ValueError(f"there is no run {frame.data['run_id']} in {self.context.workdir}")
        texts = {}
        for name in ("order", "plan", "config", "info"):
            with contextlib.suppress(OSError), open(vars(folder)[name], encoding="utf-8") as file:
                texts[name] = file.read()
        packed = zlib.compress(json.dumps(texts).encode(), 1)
        self.context.reply("run", {"id": frame.data["id"]}, packed)

    def _mark_relaunch_pending(self, frame: Frame) -> None:
        """Mark that a relaunch follows within `for_s`; reply whether a stop was requested."""
        folder = self._folder(frame)
        until = time.time() + float(frame.data.get("for_s", 0))
        with open(folder.relaunch_marker, "w", encoding="ascii"):
            pass
        os.utime(folder.relaunch_marker, (until, until))
        reply = {"stop_requested": os.path.lexists(folder.stop_marker)}
        self.context.reply("relaunch_pending", {"id": frame.data["id"], **reply})
