"""Job samples: what the nodes of Slurm jobs record of themselves, as their login node reads it.

The runner logs in to no node of a job: a sample is as old as the file on the shared disk.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping

from runner.control.rpc.session import HostSession
from runner.core.model.results import RemoteRun
from runner.core.model.samples import Sample, parse_sample
from runner.core.protocol.frames import Frame, decompress
from runner.ui.top.cluster_view import HostState, NodeView
from runner.workflows.top.watched_host import KEPT_SAMPLES

REQUEST = "recorded_samples"
ASK_S = 5.0
OLD_S = 60.0  # a sample of that age says nothing about now
RECENT_S = 30.0  # how far back a node is asked about at first
MAX_BYTES, MAX_NODES = 16 << 20, 1000

_Key = tuple[str, str]  # run and node


class JobSamples:
    """The nodes of the jobs that are on, and their last samples."""

    def __init__(self) -> None:
        self._login: dict[_Key, str] = {}  # the host that speaks for a node
        self._samples: dict[_Key, tuple[Sample, ...]] = {}
        self._asked: dict[tuple[str, int], _Key] = {}  # by host and id of the request
        self._due: dict[_Key, float] = {}
        self._ahead_s: dict[str, float] = {}  # how far clocks of hosts are ahead of ours

    def on_runs(self, runs: Iterable[RemoteRun], clocks: Mapping[str, float]) -> None:
        """Take the runs that are on, and the time that each host has just told."""
        self._ahead_s = {name: wall - time.time() for name, wall in clocks.items()}
        found = (
            ((run.run_id, node), run.asked[node])
            for run in runs
            if run.is_active and not run.has_not_begun
            for node, status in run.by_host.items()
            if status.job is not None
        )
        self._login = dict(itertools.islice(found, MAX_NODES))
        self._samples = {key: self._samples.get(key, ()) for key in self._login}

    def ask_due(self, sessions: Mapping[str, HostSession], now: float) -> None:
        """Ask for what is new."""
        for key, login in self._login.items():
            session = sessions.get(login)
            if session is None or now < self._due.get(key, 0.0):
                continue
            self._due[key] = now + ASK_S
            run_id, node = key
            last = self._samples.get(key, ())
            since = last[-1].wall if last else self._time_on(login) - RECENT_S
            request = {"run_id": run_id, "node": node, "since": since}
            self._asked[login, session.request(REQUEST, request)] = key

    def on_frame(self, name: str, frame: Frame) -> bool:
        """Take an answer; return whether the frame is one."""
        key = self._asked.pop((name, int(frame.data.get("id") or 0)), None)
        if key is None or frame.kind != REQUEST:
            return key is not None  # refused: it is asked again
        known = {sample.wall: sample for sample in self._samples.get(key, ())}
        known.update((sample.wall, sample) for sample in _parsed(frame.payload, key[1]))
        self._samples[key] = tuple(known[wall] for wall in sorted(known)[-KEPT_SAMPLES:])
        return True

    def forget(self, name: str) -> None:
        """A host is lost: it owes no answers any more."""
        self._asked = {asked: key for asked, key in self._asked.items() if asked[0] != name}

    @property
    def is_asked(self) -> bool:
        """Whether each node was asked about, and no answer is on its way."""
        return not self._asked and self._login.keys() <= self._due.keys()

    def views(self) -> list[NodeView]:
        """Return what is known of each node of a job."""
        return [
            _view(key, self._samples.get(key, ()), self._time_on(login))
            for key, login in self._login.items()
        ]

    def _time_on(self, login: str) -> float:
        return time.time() + self._ahead_s.get(login, 0.0)


def _view(key: _Key, samples: tuple[Sample, ...], now: float) -> NodeView:
    run_id, node = key
    if not samples:
        return NodeView(node, HostState.UNRECORDED, runs=(run_id,))
    age_s = now - samples[-1].wall
    if age_s > OLD_S:
        reason = f"its last sample on record is {age_s:.0f} s old"
        return NodeView(node, HostState.SILENT, reason, samples, (run_id,))
    return NodeView(node, HostState.ANSWERING, "", samples, (run_id,))


def _parsed(payload: bytes, node: str) -> list[Sample]:
    """Return the last samples among lines of a host; torn and foreign ones are left out."""
    samples = []
    try:
        lines = decompress(payload, MAX_BYTES).splitlines()
    except ValueError:
        return []
    for line in lines[-KEPT_SAMPLES:]:
        try:
            sample = parse_sample(line)
        except ValueError:
            continue
        if sample.node == node:
            samples.append(sample)
    return samples
