"""What happens in a run, as data: written by hosts and the controller, folded into a verdict."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from typing import Any, Dict, Optional, Tuple, Type, Union

from runner.core.codec import decode, encode
from runner.core.protocol.states import State

EVENT_VERSION = 1


class StopCause(enum.Enum):
    """Who wanted a run to stop."""

    USER = "user"
    """Somebody asked for it."""
    PEER = "peer"
    """It failed elsewhere."""
    LOCAL = "local"
    """Something of this host's own, which the reason tells."""


@dataclass(frozen=True)
class ProgramStarted:
    """The supervisor started the program (torchrun), in a `cgroup` of its own if it could.

    `rejoin_count` is that of its order.
    """

    pid: int
    cgroup: str = ""
    rejoin_count: int = 0


@dataclass(frozen=True)
class RankStarted:
    """A rank's own program runs, for the `start`-th time on this node.

    The rest is what torch told it: the number of ranks and of nodes (0 if it did not), where
    they meet, its node's place among them, and how often torch started them anew.
    """

    rank: int
    pid: int
    start: int = 1
    world_size: int = 0
    nodes: int = 0
    master: str = ""
    group_rank: int = 0
    restarts: int = 0


@dataclass(frozen=True)
class RankExited:
    """A rank ended: by `code`, or by `signal` (then code is None).

    Both are None when its shim was killed with it, so that nobody saw the end.
    `max_rss` is its peak memory in bytes, `traceback` what torch's `@record` wrote down of its end,
    `start` that of its `RankStarted`, `exception` the exception that its log ends with.
    """

    rank: int
    code: Optional[int] = None
    signal: Optional[int] = None
    max_rss: int = 0
    error: str = ""
    traceback: str = ""
    start: int = 1
    exception: str = ""

    @property
    def succeeded(self) -> bool:
        """Whether it succeeded."""
        return self.code == 0


@dataclass(frozen=True)
class ProgramExited:
    """The program ended: by `code`, or by `signal`."""

    code: Optional[int] = None
    signal: Optional[int] = None
    error: str = ""


@dataclass(frozen=True)
class PortTaken:
    """Somebody else listens on the master's port."""

    port: int
    pids: Tuple[int, ...] = ()


@dataclass(frozen=True)
class Stopping:
    """The supervisor began to end what is left of the run, because of a `cause`."""

    reason: str
    cause: StopCause = StopCause.LOCAL


@dataclass(frozen=True)
class Ended:
    """The run is over on this host.

    `killed` processes had to be killed; `survivors` could not be. `verified` is whether the look
    that found nothing else saw everything of the run.
    """

    state: State
    reason: str = ""
    killed: int = 0
    survivors: Tuple[int, ...] = ()
    verified: bool = True


@dataclass(frozen=True)
class HubJoined:
    """The supervisor is in touch with the hub: from now on one's failure ends all."""


@dataclass(frozen=True)
class HubUnreachable:
    """The supervisor cannot reach the hub, and goes on trying."""

    reason: str


@dataclass(frozen=True)
class PeerLost:
    """The supervisor heard no more of the node `peer`, or lost the connection to it."""

    peer: str
    reason: str


@dataclass(frozen=True)
class PeerDeparted:
    """The node `peer` was lost, or left, and the run goes on with `nodes` others (0: not known)."""

    peer: str
    reason: str
    nodes: int = 0


@dataclass(frozen=True)
class Detached:
    """The run goes on without a controller from now on."""


@dataclass(frozen=True)
class Stalled:
    """Nothing of the run has moved anywhere for `seconds`.

    Where every rank of this host is, is in its log `stacks`, in the dump made at `dump_time`, or
    `problem` says why not. `stops_run` is whether the run is stopped for it.
    """

    seconds: float
    stops_run: bool = False
    problem: str = ""
    dump_time: str = ""


@dataclass(frozen=True)
class ProgressResumed:
    """Something moves again."""


@dataclass(frozen=True)
class StopRequested:
    """The controller told every host to stop; `signal` is the user's, 0 for a failure elsewhere."""

    reason: str
    signal: int = 0


@dataclass(frozen=True)
class HostLost:
    """The controller heard nothing of a host any more, or lost its link."""

    reason: str


@dataclass(frozen=True)
class EndUnverified:
    """A host did not say in time that nothing of the run is left there."""

    reason: str


@dataclass(frozen=True)
class RelaunchPending:
    """Nothing of the attempt is left here; the hosts see whether the run starts once more."""


@dataclass(frozen=True)
class Relaunching:
    """The hosts start the run once more: as the attempt `number`, on `nodes` in rank order."""

    number: int
    nodes: Tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class NotRelaunched:
    """The hosts do not start the run once more."""

    reason: str


EventBody = Union[
    ProgramStarted,
    RankStarted,
    RankExited,
    ProgramExited,
    PortTaken,
    Stopping,
    Ended,
    HubJoined,
    HubUnreachable,
    PeerLost,
    PeerDeparted,
    Detached,
    Stalled,
    ProgressResumed,
    StopRequested,
    HostLost,
    EndUnverified,
    RelaunchPending,
    Relaunching,
    NotRelaunched,
]

EVENT_TYPES: Dict[str, Type[Any]] = {
    "program_started": ProgramStarted,
    "rank_started": RankStarted,
    "rank_exited": RankExited,
    "program_exited": ProgramExited,
    "port_taken": PortTaken,
    "stopping": Stopping,
    "ended": Ended,
    "hub_joined": HubJoined,
    "hub_unreachable": HubUnreachable,
    "peer_lost": PeerLost,
    "peer_departed": PeerDeparted,
    "detached": Detached,
    "stalled": Stalled,
    "progress_resumed": ProgressResumed,
    "stop_requested": StopRequested,
    "host_lost": HostLost,
    "end_unverified": EndUnverified,
    "relaunch_pending": RelaunchPending,
    "relaunching": Relaunching,
    "not_relaunched": NotRelaunched,
}
_KINDS = {cls: name for name, cls in EVENT_TYPES.items()}


@dataclass(frozen=True)
class Event:
    """One thing that happened.

    `node` is "" for the controller itself. `wall` (seconds since 1970) and `mono` are the clocks
    of the machine where it happened, at that moment; `seq` counts the events of that machine.
    """

    run_id: str
    node: str
    attempt: int
    seq: int
    wall: float
    mono: float
    body: EventBody

    def to_line(self) -> str:
        """Return the event as one line of `events.jsonl`."""
        return json.dumps(self.as_data(), separators=(",", ":")) + "\n"

    def as_data(self) -> Dict[str, Any]:
        """Return the event as one flat JSON object."""
        envelope = {"v": EVENT_VERSION, "kind": _KINDS[type(self.body)]}
        envelope.update({k: v for k, v in encode(self).items() if k != "body"})
        return {**envelope, **encode(self.body)}


def parse(line: str) -> Event:
    """Read one line of `events.jsonl`.

    Raises:
        ValueError: It is no event, or of a kind this version does not know.
    """
    data = json.loads(line)
    kind = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(kind, str) or kind not in EVENT_TYPES:
        raise ValueError(f"an event of unknown kind {kind!r}")
    names = ("run_id", "node", "attempt", "seq", "wall", "mono")
    try:
        return Event(body=decode(EVENT_TYPES[kind], data), **{name: data[name] for name in names})
    except KeyError as missing:
        raise ValueError(f"an event without {missing}") from None
