"""Run requests: list the runs of this host, show one's record, mark that a relaunch is pending."""

from __future__ import annotations

import contextlib
import json
import os
import time
import zlib
from typing import Any, Dict, Generator, List, Set

from runner.core.codec import encode
from runner.core.model.slurm import SUBMITTING
from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import JobPaths
from runner.core.protocol.states import State
from runner.host.agent.server import RequestHandler
from runner.host.process.event_loop import Steps
from runner.host.storage.run_folder import make_marker
from runner.host.storage.run_list import list_runs

LISTING_LIMIT_S = 3.0
"""How long a listing waits for Slurm: without its controller, squeue takes 9 s to say so."""


class Handler(RequestHandler):
    """Answers from run folders alone."""

    def on_runs(self, frame: Frame) -> Steps:
        """List the runs of this host, or one of them; `others` are asked, too."""
        node, run_id = frame.data["node"], frame.data.get("run_id", "")
        others = frame.data.get("others", ())
        workdir = self.context.workdir
        samples = bool(frame.data.get("samples"))
        listing = yield from list_runs(workdir, node, others, run_id, samples=samples)
        if any(run["job"] is not None for run in listing["runs"]):
            over = yield from _ask_slurm(workdir, listing["runs"])
            for gone in over:  # perhaps since it was read
                again = yield from list_runs(workdir, node, others, gone)
                kept = [run for run in listing["runs"] if run["info"]["run_id"] != gone]
                for run in again["runs"]:
                    _take_as_over(run)
                listing["runs"] = [*kept, *again["runs"]]
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


def _ask_slurm(workdir: str, runs: List[Dict[str, Any]]) -> Generator[None, None, Set[str]]:
    """Add to runs of jobs how these stand; return those that Slurm does not know any more.

    A controller that lost its state gives the ids of jobs again: a job has its run's name, too.
    """
    from runner.host.slurm import job  # noqa: PLC0415 (most hosts have no Slurm)
    from runner.host.slurm.job_folder import remove_secrets  # noqa: PLC0415

    jobs, problem = yield from job.queued(limit_s=LISTING_LIMIT_S)
    by_id, by_name = ({getattr(each, key): each for each in jobs} for key in ("job_id", "name"))
    gone, now = set(), time.time()
    for run in runs:
        if run["job"] is None:
            continue
        job_id, name = run["job"]["job_id"], run["job"].get("name", "")
        known = by_id.get(job_id) if job_id.isdigit() else by_name.get(name)
        if known is not None and name in ("", known.name):
            run["job"] = encode(known)
            run["relaunch_pending"] = known.is_queued and not run["alive"]
        elif problem:
            run["job"]["problem"] = problem
        elif not job_id.isdigit() and now - run["changed_at"] < job.SUBMITTING_S:
            run["job"]["state"] = SUBMITTING
        else:
            paths = JobPaths(workdir, run["info"]["run_id"])
            if os.path.exists(paths.secrets):
                remove_secrets(paths, (yield from job.status(paths)))
            if run["alive"]:
                gone.add(run["info"]["run_id"])
    return gone


def _take_as_over(run: Dict[str, Any]) -> None:
    """Note that the job of a run is over, whatever its record says."""
    if run["alive"]:
        run["alive"] = False
        if not run["info"]["world_size"]:  # it never began
            run["state"] = State.FAILED.value
