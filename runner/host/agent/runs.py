"""Run requests: list the runs of this host, show one's record, mark that a relaunch is pending."""

from __future__ import annotations

import contextlib
import json
import os
import time
import zlib

from runner.core.wire.codec import Frame
from runner.host.agent.server import RequestHandler
from runner.host.process.event_loop import Steps
from runner.host.storage.run_folder import make_marker
from runner.host.storage.run_list import list_runs


class Handler(RequestHandler):
    """Answers from run folders alone."""

    def on_runs(self, frame: Frame) -> Steps:
        """List the runs of this host, or one of them; `others` are asked, too."""
        node, run_id = frame.data["node"], frame.data.get("run_id", "")
        others = frame.data.get("others", ())
        workdir = self.context.workdir
        listing = yield from list_runs(workdir, node, others, run_id)
        self.context.answer(frame, "runs", **listing)

    def on_run(self, frame: Frame) -> None:
        """Send the order, and what is on record of the whole run."""
        folder = self.context.run_folder(frame)
        if not os.path.isdir(folder.root):
            raise ValueError(f"there is no run {frame.data['run_id']} in {self.context.workdir}")
        texts = {}
        for name in ("order", "plan", "config", "info"):
            with contextlib.suppress(OSError), open(vars(folder)[name], encoding="utf-8") as file:
                texts[name] = file.read()
        self.context.answer(frame, "run", zlib.compress(json.dumps(texts).encode(), 1))

    def on_mark_relaunch_pending(self, frame: Frame) -> None:
        """Mark that a relaunch follows within `for_s`; reply whether a stop was requested."""
        folder = self.context.run_folder(frame)
        make_marker(folder.relaunch_marker, time.time() + float(frame.data.get("for_s", 0)))
        stop_requested = os.path.lexists(folder.stop_marker)
        self.context.answer(frame, "relaunch_pending", stop_requested=stop_requested)
