"""Clean request: remove ended runs and unused releases."""

from __future__ import annotations

from runner.core.protocol.frames import Frame
from runner.host.agent.handler import HandlerTable, RequestHandler
from runner.host.process.job_queue import Steps
from runner.host.storage.garbage import collect_garbage


class Handler(RequestHandler):
    """Collects garbage in steps."""

    def handlers(self) -> HandlerTable:
        """Return the function for each kind of request."""
        return {"clean": lambda frame: self.context.jobs.add(frame, self._clean(frame))}

    def _clean(self, frame: Frame) -> Steps:
        request = frame.data
        older_than_s, dry_run = float(request["older_than_s"]), bool(request["dry_run"])
        removed = yield from collect_garbage(
            self.context.workdir, request["node"], older_than_s, dry_run=dry_run
        )
        self.context.reply("cleaned", {"id": request["id"], **removed})
