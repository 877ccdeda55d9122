"""Clean requests: remove what ended runs left on the disk, or kill what a run left running."""

from __future__ import annotations

import contextlib

from runner.core.wire.codec import Frame
from runner.host.agent.server import RequestHandler
from runner.host.process.subreaper import kill_until_gone
from runner.host.storage import run_owner
from runner.host.storage.garbage import collect_garbage, remove_left_container
from runner.host.storage.run_folder import make_marker
from runner.host.supervisor.recovery import find_leftovers, recover_unfinished


class Handler(RequestHandler):
    """Removes runs and releases, and proves that nothing of a run is left on this host."""

    def on_clean(self, frame: Frame) -> None:
        """Remove ended runs and unused releases; of the runs, `only` those named."""
        removed = collect_garbage(
            self.context.workdir,
            frame.data["node"],
            float(frame.data["older_than_s"]),
            frame.data.get("others", ()),
            frame.data.get("only"),
            dry_run=bool(frame.data["dry_run"]),
            with_kept=bool(frame.data["with_kept"]),
        )
        self.context.answer(frame, "cleaned", **removed)

    def on_kill_leftovers(self, frame: Frame) -> None:
        """Kill what a run left after its supervisor died, name survivors, complete its record.

        Raise ValueError if a container may be left. The request ends the run: no other attempt of
        it begins here.
        """
        folder = self.context.run_folder(frame)
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
        self.context.answer(frame, "leftovers", killed=len(killed), survivors=list(survivors))
