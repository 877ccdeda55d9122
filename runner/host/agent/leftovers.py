"""Leftovers request: kill what a run left after its supervisor died, and complete its record."""

from __future__ import annotations

import contextlib
import os

from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import RunPaths, validated_paths
from runner.host.agent.handler import HandlerTable, RequestHandler
from runner.host.process.kill import kill_until_gone, reap_all
from runner.host.storage import run_owner
from runner.host.storage.run_owner import RunLock
from runner.host.supervisor.recovery import find_leftovers, recover_unfinished


class Handler(RequestHandler):
    """Proves that nothing of a run is left on this host."""

    def handlers(self) -> HandlerTable:
        """Return the function for each kind of request."""
        return {"kill_leftovers": self._kill_leftovers}

    def _kill_leftovers(self, frame: Frame) -> None:
        """Kill what is left of a run, and name what could not be killed.

        The request ends the run: no other attempt of it begins here.
        """
        request = frame.data
        folder = validated_paths(self.context.workdir, request["run_id"], request["node"])
        run_owner.require_local(folder)
        with contextlib.suppress(OSError), open(folder.stop_marker, "w", encoding="ascii"):
            pass  # a full disk has no room for another attempt either
        scan, cgroup = find_leftovers(folder, request["run_id"], request["node"])
        killed, survivors = kill_until_gone(scan, reap_all, cgroup=cgroup)
        if not survivors:
            _complete_record(folder)
        reply = {"killed": len(killed), "survivors": list(survivors)}
        self.context.reply("leftovers", {"id": request["id"], **reply})


def _complete_record(folder: RunPaths) -> None:
    """Record the end of a run that died with its host, unless it is alive after all."""
    lock_fd = run_owner.take_over(folder)
    if lock_fd is not None:
        try:
            recover_unfinished(folder)
            RunLock(folder).remove_files()
        finally:
            os.close(lock_fd)
