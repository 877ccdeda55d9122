"""Watched host: what one host has said, what it is to be asked next, and until when it may answer.

A thread of `HostWatch` alone changes it.
"""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any

from runner.core.errors import Problem
from runner.core.model.samples import Sample
from runner.core.model.spec import Node
from runner.ui.top.cluster_view import HostState, NodeView

SAMPLE, RUNS, FACTS = "sample", "runs", "facts"

SAMPLE_S, RUNS_S = 2.0, 5.0
"""How often a host is asked for each."""

FIRST_SAMPLE_S = 1.0  # after the first sample, which has no rates
MAX_RUNS_SHARE = 0.05  # of the time, that a host works on the list of its runs
ANSWER_S = 15.0  # a sample is taken from memory: a host that takes longer is as good as lost
MIN_RETRY_S, MAX_RETRY_S = 2.0, 30.0
KEPT_SAMPLES = 4


class WatchedHost:
    """One host."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.state, self.problem = HostState.CONNECTING, Problem(node.name, "")
        self.samples: deque[Sample] = deque(maxlen=KEPT_SAMPLES)
        self.runs: dict[str, Any] | None = None  # the last answer
        self.has_no_runs = ""  # why it cannot say which it has
        self.is_connecting = False
        self.retry_at, self._retry_s = 0.0, MIN_RETRY_S
        self._due: dict[str, float] = {}  # when to ask, by kind of request
        self._asked: dict[str, tuple[int, float, float]] = {}  # the id, when, and the deadline

    def view(self, runs: tuple[str, ...]) -> NodeView:
        """Return what is known of it."""
        samples = tuple(self.samples)
        return NodeView(self.node.name, self.state, self.problem.message, samples, runs)

    @property
    def deadline(self) -> float:
        """When (monotonic) it is lost, unless it answers."""
        return min((deadline for _, _, deadline in self._asked.values()), default=math.inf)

    @property
    def is_sampled(self) -> bool:
        """Whether its rates are known, or it does not answer."""
        return self.state is HostState.SILENT or len(self.samples) > 1

    @property
    def is_settled(self) -> bool:
        """Whether one look has seen all of it that there is."""
        tells_runs = self.runs is not None or bool(self.has_no_runs)
        return self.is_sampled and (tells_runs or self.state is HostState.SILENT)

    def due(self, now: float) -> list[str]:
        """Return the requests to make now."""
        return [kind for kind, at in self._due.items() if now >= at and kind not in self._asked]

    def on_connected(self) -> None:
        """Ask everything from the beginning."""
        self.is_connecting = False
        self._asked.clear()
        self._due = {FACTS: 0.0, SAMPLE: 0.0}

    def on_asked(self, kind: str, request_id: int, limit_s: float) -> None:
        """Note a request."""
        now = time.monotonic()
        self._asked[kind] = (request_id, now, now + limit_s)
        self._due.pop(kind)

    def kind_of(self, request_id: int | None) -> str:
        """Return which request has that id, "" if none is open."""
        return next((kind for kind, asked in self._asked.items() if asked[0] == request_id), "")

    def on_facts(self) -> None:
        """It can say now which runs it has."""
        self._asked.pop(FACTS, None)
        self._due[RUNS] = 0.0

    def on_sample(self, sample: Sample) -> None:
        """Take a sample; the next one is due after a while."""
        _, asked_at, _ = self._asked.pop(SAMPLE)
        if self.state is not HostState.ANSWERING:  # what was before the gap is not recent
            self.samples.clear()
        self._due[SAMPLE] = asked_at + (SAMPLE_S if self.samples else FIRST_SAMPLE_S)
        self.samples.append(sample)
        self.state, self._retry_s = HostState.ANSWERING, MIN_RETRY_S

    def on_runs(self, reply: dict[str, Any]) -> None:
        """Take the list of its runs; a host that took long for it is asked less often."""
        now = time.monotonic()
        _, asked_at, _ = self._asked.pop(RUNS)
        self.runs, self.has_no_runs = reply, ""
        self._due[RUNS] = max(asked_at + RUNS_S, now + (now - asked_at) / MAX_RUNS_SHARE)

    def on_refused(self, kind: str, reason: str) -> None:
        """Go on without what it could not say."""
        self._asked.pop(kind)
        self.has_no_runs = reason
        if kind == RUNS:
            self._due[RUNS] = time.monotonic() + MAX_RETRY_S

    def on_lost(self, problem: Problem) -> None:
        """Forget the connection; another one is tried after a while."""
        self.state, self.problem = HostState.SILENT, problem
        self.is_connecting = False
        self.runs = None
        self._asked.clear()
        self._due.clear()
        self.retry_at = time.monotonic() + self._retry_s
        self._retry_s = min(MAX_RETRY_S, 2 * self._retry_s)
