"""Events: what happens in a run, as hosts and the controller record it; folded into a verdict."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Dict, Optional, Tuple, Type

from runner.core.wire.codec import abbreviate, bounded, decode, encode, parse_json
from runner.core.wire.paths import ATTEMPT, RANK
from runner.core.wire.states import Reason, ReasonKind, State
from runner.core.wire.text import describe_exit

EVENT_VERSION = 1

COUNT = bounded(0, 1 << 62)
TIME = bounded(-1e11, 1e11)
"""Limits of decoded fields: amounts, and times in seconds."""


class EventBody:
    """What happened; a subclass for each kind."""


@dataclass(frozen=True)
class ProgramStarted(EventBody):
    """The supervisor started the launcher process (torchrun)."""

    pid: int
    rejoin_count: int = 0


@dataclass(frozen=True)
class RankStarted(EventBody):
    """A rank's program runs, for the `start`-th time on this node; the rest comes from torch."""

    rank: int = field(metadata=RANK)
    pid: int
    start: int = field(default=1, metadata=COUNT)
    world_size: int = field(default=0, metadata=COUNT)  # 0 if unknown, like `nodes`
    nodes: int = field(default=0, metadata=COUNT)
    master: str = ""  # where the ranks meet
    restarts: int = 0  # by torch, after failures
    max_restarts: int = 0
    forked: bool = False  # from a process that has imported torch


@dataclass(frozen=True)
class RankExited(EventBody):
    """A rank ended: by `code`, or by `signal`; both are None if its shim was killed with it."""

    rank: int = field(metadata=RANK)
    code: Optional[int] = None
    signal: Optional[int] = None
    error: str = ""
    traceback: str = ""  # what torch's `@record` wrote
    start: int = field(default=1, metadata=COUNT)  # as in its `RankStarted`
    exception: str = ""  # the one that its log ends with
    raised_s: float = field(default=0.0, metadata=TIME)  # from then until it ended
    facts: Dict[str, str] = field(default_factory=dict)  # of `rank_facts`, if it failed

    @property
    def succeeded(self) -> bool:
        return self.code == 0

    def reason(self, node: str) -> Reason:
        code = -self.signal if self.signal else self.code
        detail = self.error or describe_exit(self.code, self.signal)
        return Reason(ReasonKind.RANK, node, self.rank, code, detail)


@dataclass(frozen=True)
class ProgramExited(EventBody):
    """The launcher process ended: by `code`, or by `signal`."""

    code: Optional[int] = None
    signal: Optional[int] = None
    error: str = ""
    apart: bool = False  # whether its ranks had a store of torch's of their own, and met no others
    container_failed: bool = False  # whether its engine could not start it, by the `error`

    @property
    def succeeded(self) -> bool:
        return self.code == 0 and not self.error

    def reason(self, node: str, launcher: str) -> Reason:
        code = -self.signal if self.signal else self.code
        kind = ReasonKind.START if self.container_failed else ReasonKind.PROGRAM
        detail = self.error or f"{launcher} {describe_exit(self.code, self.signal)}"
        return Reason(kind, node, None, code, detail)


@dataclass(frozen=True)
class Stopping(EventBody):
    """The supervisor began to end the processes of the run."""

    reason: Reason


@dataclass(frozen=True)
class Ended(EventBody):
    """The run ended on this host."""

    state: State
    reason: Optional[Reason] = None  # where it lies on this host, and is no failure of a rank
    killed: int = field(default=0, metadata=COUNT)  # how many processes had to be
    survivors: Tuple[int, ...] = ()  # pids that could not be killed
    verified: bool = True  # the search that found nothing else could see every process of the run
    left_over: Tuple[str, ...] = ()  # what the program had left running when it ended by itself
    unproven: str = ""  # why its container is not known to be gone


@dataclass(frozen=True)
class HubJoined(EventBody):
    """The supervisor joined the hub: from now on the failure of one ends all."""


@dataclass(frozen=True)
class HubUnreachable(EventBody):
    """The supervisor cannot reach the hub, and keeps trying."""

    reason: str


@dataclass(frozen=True)
class PeerLost(EventBody):
    """The node `peer` fell silent, or its connection to this node broke.

    The event has the time of its last sign of life, as those of all losses have.
    """

    peer: str
    reason: str
    silence_s: float = field(default=0.0, metadata=TIME)  # from then until this was declared


@dataclass(frozen=True)
class PeerDeparted(EventBody):
    """The node `peer` was lost or left; the run goes on with `nodes` others (0 if unknown)."""

    peer: str
    reason: str
    nodes: int = field(default=0, metadata=COUNT)
    silence_s: float = field(default=0.0, metadata=TIME)


@dataclass(frozen=True)
class Detached(EventBody):
    """The run needs no controller from now on."""


@dataclass(frozen=True)
class Stalled(EventBody):
    """No rank has made progress for `seconds`."""

    seconds: float = field(metadata=TIME)
    stops_run: bool = False  # whether the run is stopped for it
    problem: str = ""  # why this host's ranks have no dump in its log `stacks`
    dump_time: str = ""  # of that dump


@dataclass(frozen=True)
class ProgressResumed(EventBody):
    """A rank made progress again."""


@dataclass(frozen=True)
class StopRequested(EventBody):
    """The controller asked every host to stop; `signal` is the user's, 0 after a failure."""

    reason: Reason
    signal: int = 0


@dataclass(frozen=True)
class HostLost(EventBody):
    """The controller declared a host lost: it was silent, or could not be reached."""

    reason: str
    silence_s: float = field(default=0.0, metadata=TIME)


@dataclass(frozen=True)
class EndUnverified(EventBody):
    """A host did not prove in time that nothing of the run is left there."""

    reason: str


@dataclass(frozen=True)
class RelaunchPending(EventBody):
    """Nothing of the attempt is left here; the hosts decide on a relaunch."""


@dataclass(frozen=True)
class Relaunching(EventBody):
    """The hosts relaunch the run: as the attempt `number`, on `nodes` in rank order."""

    number: int = field(metadata=ATTEMPT)
    nodes: Tuple[str, ...]
    reason: Reason


@dataclass(frozen=True)
class NotRelaunched(EventBody):
    """The hosts do not relaunch the run."""

    reason: str


@dataclass(frozen=True)
class RanksSignalled(EventBody):
    """The ranks of a node got a signal, since their job is about to reach its time limit."""

    signal: int
    count: int = field(default=0, metadata=COUNT)


@dataclass(frozen=True)
class NotificationFailed(EventBody):
    """A notification about `event` did not reach its `target`; nothing else follows from that."""

    target: str  # the command, perhaps cut
    reason: str
    event: str = ""  # of which it was to tell

    @property
    def text(self) -> str:
        return f'the notification "{self.target}" failed: {self.reason}'


EVENT_TYPES: Dict[str, Type[Any]] = {
    re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower(): cls
    for cls in EventBody.__subclasses__()
}
"""The class of every kind of event: `HubJoined` is the kind `hub_joined`."""

_KINDS = {cls: name for name, cls in EVENT_TYPES.items()}


@dataclass(frozen=True)
class Event:
    """One event: what happened, where and when, by the clocks of that machine."""

    run_id: str
    node: str  # "" for the controller itself
    attempt: int = field(metadata=ATTEMPT)
    seq: int  # counts the events of that machine
    wall: float = field(metadata=TIME)  # in seconds since 1970
    mono: float = field(metadata=TIME)
    body: EventBody

    def to_line(self) -> str:
        return json.dumps(self.as_data(), separators=(",", ":")) + "\n"

    def as_data(self) -> Dict[str, Any]:
        envelope = {"v": EVENT_VERSION, "kind": _KINDS[type(self.body)]}
        envelope.update({k: v for k, v in encode(self).items() if k != "body"})
        return {**envelope, **encode(self.body)}


@dataclass(frozen=True)
class TimedEvent:
    """An event, and when it happened on the controller's monotonic clock (seconds)."""

    at: float
    event: Event


def parse(line: str) -> Event:
    """Read one line of `events.jsonl`.

    Raises:
        ValueError: It is no event, or of an unknown kind.
    """
    data = parse_json(line)
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in EVENT_TYPES:
        raise ValueError(f"unknown kind of event: {abbreviate(kind)}")
    return decode(Event, {**data, "body": decode(EVENT_TYPES[kind], data)})
