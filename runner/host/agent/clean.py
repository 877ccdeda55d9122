"""Clean requests: remove what ended runs left on the disk, or kill what a run left running."""

from __future__ import annotations

import contextlib
import os
from typing import Generator, List

from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import JobPaths, RunPaths
from runner.host.agent.server import RequestHandler
from runner.host.process.event_loop import Steps
from runner.host.process.kill import kill_until_gone
from runner.host.storage import run_owner
from runner.host.storage.garbage import (
    collect_garbage,
    find_unbegun,
    remove_job,
    remove_left_container,
)
from runner.host.storage.run_folder import make_marker, read_order
from runner.host.storage.run_list import is_in_job
from runner.host.supervisor.recovery import find_leftovers, recover_unfinished


class Handler(RequestHandler):
    """Removes runs and releases, and proves that nothing of a run is left on this host."""

    def on_clean(self, frame: Frame) -> Steps:
        """Remove ended runs and unused releases; of the runs, `only` those named."""
        workdir, node = self.context.workdir, frame.data["node"]
        older_than_s, dry_run = float(frame.data["older_than_s"]), bool(frame.data["dry_run"])
        others, only = frame.data.get("others", ()), frame.data.get("only")
        removed = yield from collect_garbage(
            workdir, node, older_than_s, others, only, dry_run=dry_run
        )
        if only is None:
            removed["runs"] += yield from _remove_unbegun(workdir, older_than_s, dry_run=dry_run)
        self.context.answer(frame, "cleaned", **removed)

    def on_kill_leftovers(self, frame: Frame) -> Steps:
        """Kill what a run left after its supervisor died, name survivors, complete its record.

        Raise ValueError if a container may be left. The request ends the run: no other attempt of
        it begins here.
        """
        folder = self.context.run_folder(frame)
        if is_in_job(folder):
            yield from self._end_job(frame, folder)
            return
        run_owner.require_local(folder)
        with contextlib.suppress(OSError):  # a full disk has no room for another attempt either
            make_marker(folder.stop_marker)
        scan, cgroup = find_leftovers(folder, frame.data["run_id"], frame.data["node"])
        killed, survivors = kill_until_gone(scan, list, cgroup=cgroup)
        lock = None if survivors else run_owner.take_over(folder)
        if lock is not None:  # it is not alive after all
            with lock:
                recover_unfinished(folder)
                if problem := (yield from remove_left_container(folder)):
                    raise ValueError(problem)
        self.context.answer(frame, "leftovers", killed=len(killed), survivors=list(survivors))

    def _end_job(self, frame: Frame, folder: RunPaths) -> Steps:
        """Have Slurm end the job of a run, which is a proof, and complete the node's record."""
        from runner.host.slurm import job, recovery  # noqa: PLC0415 (most hosts have no Slurm)

        run_id = frame.data["run_id"]
        paths = JobPaths(os.path.dirname(os.path.dirname(os.path.dirname(folder.root))), run_id)
        with contextlib.suppress(OSError):
            make_marker(folder.stop_marker)
        if problem := (yield from job.cancel(paths)):
            raise ValueError(problem)
        order = read_order(folder)
        if order is not None:
            recovery.complete(folder, order, (yield from job.status(paths)))
        self.context.answer(frame, "leftovers", killed=0, survivors=[])


def _remove_unbegun(
    workdir: str, older_than_s: float, *, dry_run: bool
) -> Generator[None, None, List[str]]:
    """Remove the runs whose jobs have ended before they began them.

    Slurm is asked only where there is one: without its controller, that takes seconds.
    """
    unbegun = find_unbegun(workdir, older_than_s)
    if not unbegun:
        return []
    from runner.host.slurm import job  # noqa: PLC0415 (most hosts have no Slurm)

    jobs, problem = yield from job.queued()
    if problem:
        return []
    known = {word for each in jobs for word in (each.job_id, each.name)}
    removed = [run_id for run_id, job_id in unbegun.items() if not known & {run_id, job_id}]
    for run_id in () if dry_run else removed:
        remove_job(JobPaths(workdir, run_id).run)
    return removed
