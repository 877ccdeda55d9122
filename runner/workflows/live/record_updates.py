"""Record updates: what hosts have of a run that goes on, added to its record here bit by bit.

It is what `attach` would write, fetched as `pull` does: nothing twice, and no lease of a
controller is renewed.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from runner.control.record.download import pull
from runner.control.record.file_names import HOSTS_FOLDER
from runner.control.rpc.log_tail import is_own_event
from runner.core.model.plan import Plan
from runner.core.model.results import PullResult
from runner.core.protocol.events import Event, parse
from runner.core.protocol.paths import EVENTS_FILE
from runner.core.protocol.remote_files import LOG, RECORD, SAMPLES
from runner.workflows.live.sample_updates import SampleUpdates
from runner.workflows.runs.found_run import FoundRun

MAX_BLOCK = 16 << 20  # bytes of events that are read at once


class RecordUpdates:
    """The additions to the record of one run.

    Where another process writes it, these are only what that one leaves out: the hosts' own files,
    such as their samples, which `pull` keeps apart.
    """

    def __init__(self) -> None:
        self._events_read: dict[str, int] = {}  # bytes, by node
        self._samples = SampleUpdates()

    def fetch(self, run: FoundRun, *, owns_record: bool) -> dict[str, PullResult]:
        """Fetch what is new on the hosts that answer; return what came of each.

        If it `owns_record`, this process has locked it.
        """
        pool, store = run.finder.pool, run.store
        part = {node: each for node, each in pool.sessions.items() if node in run.all_nodes}
        sessions = {node: each for node, each in part.items() if not each.closed}
        kinds = (RECORD, LOG) if owns_record else (RECORD,)
        wants_samples = self._samples.wants_download
        fetched = pull(
            *(sessions, pool.inbox, run.plan.run_id, store.folder),
            lost_s=pool.spec.lost_s,
            show=lambda *_: None,
            kinds=(*kinds, SAMPLES) if wants_samples else kinds,
            is_locked=True,
        )
        if wants_samples:
            self._samples.on_downloaded(run)
        self._samples.ask(run)
        if owns_record:
            for node in fetched:
                self._add_events(run, node)
            self._add_metrics(run)
        return fetched

    def _add_events(self, run: FoundRun, node: str) -> None:
        position = self._events_read.get(node, 0)
        data = _read(run.store.folder / HOSTS_FOLDER / node / EVENTS_FILE, position)
        whole = data[: data.rfind(b"\n") + 1]
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):
                event = parse(line.decode(errors="replace"))
                if _may_report(node, event, run.plan):
                    run.store.append(event)
        self._events_read[node] = position + len(whole)

    def _add_metrics(self, run: FoundRun) -> None:
        run.store.metrics.complete(run.plan.progress_pattern)


def _may_report(node: str, event: Event, plan: Plan) -> bool:
    """Return whether an event is one of the node that sent it; of earlier attempts as it says."""
    if (event.run_id, event.node) != (plan.run_id, node):
        return False
    shares = [share for share in plan.nodes if share.node == node]
    return event.attempt != plan.attempt or any(is_own_event(event, share) for share in shares)


def _read(path: Path, position: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(position)
            return file.read(MAX_BLOCK)
    except OSError:  # none yet
        return b""
