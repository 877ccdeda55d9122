"""Sample updates: the newest samples of a run's hosts, added to what was downloaded of them.

The hosts thin out their files as these grow, so that a download begins anew each time: between two
of them, hosts are only asked for what is newer.
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from runner.control.record.file_names import HOSTS_FOLDER
from runner.control.record.samples_record import ask_recorded, merge
from runner.core.model.samples import MAX_LINE, Sample, parse_sample
from runner.core.protocol.paths import SAMPLES_FILE
from runner.core.protocol.remote_files import MAX_SAMPLE_FILE
from runner.workflows.runs.found_run import FoundRun

ASK_S = 5.0
MERGE_DUTY = 0.1  # the share of time that making the record of all samples anew may take
TIMEOUT_S = 10.0


class SampleUpdates:
    """The samples of one attempt."""

    def __init__(self) -> None:
        self.wants_download = True  # of all there are, as there is nothing here, or too much
        self._ask_at = self._merge_at = 0.0
        self._last: dict[str, float] = {}  # the time of each node's last sample, by its clock

    def on_downloaded(self, run: FoundRun) -> None:
        """Go on from what is here now."""
        self.wants_download = False
        self._ask_at = time.monotonic() + ASK_S
        for share in run.plan.nodes:
            self._last[share.node] = _last_wall(_file(run, share.node))

    def ask(self, run: FoundRun) -> None:
        """Ask for newer ones, if that is due."""
        if time.monotonic() < self._ask_at:
            return
        nodes = {share.node for share in run.plan.nodes}
        broadcast = run.finder.broadcast(nodes)
        since = min((self._last.get(node, 0.0) for node in broadcast.sessions), default=0.0)
        samples, _ = ask_recorded(broadcast, run.plan.run_id, since, TIMEOUT_S)
        for node, found in samples.items():
            newer = [each for each in found if each.wall > self._last.get(node, 0.0)]
            if newer and all(each.attempt == run.plan.attempt for each in newer):
                self._add(_file(run, node), newer)
                self._last[node] = max(each.wall for each in newer)
        now = time.monotonic()
        self._ask_at = now + ASK_S
        if now >= self._merge_at and (run.store.folder / SAMPLES_FILE).exists():
            merge(run.store.folder)
            self._merge_at = now + (time.monotonic() - now) / MERGE_DUTY

    def _add(self, path: Path, samples: list[Sample]) -> None:
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with path.open("ab") as file:
                file.write("".join(each.to_line() for each in samples).encode())
                self.wants_download = self.wants_download or file.tell() > 2 * MAX_SAMPLE_FILE


def _file(run: FoundRun, node: str) -> Path:
    return run.store.folder / HOSTS_FOLDER / node / f"attempt_{run.plan.attempt}" / SAMPLES_FILE


def _last_wall(path: Path) -> float:
    """Return the time of the last sample in a file, 0 if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 2 * MAX_LINE))
            lines = file.read().splitlines()
    except OSError:
        return 0.0
    for line in reversed(lines):
        with contextlib.suppress(ValueError):
            return parse_sample(line).wall
    return 0.0
