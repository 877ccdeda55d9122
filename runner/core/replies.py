"""Replies of an agent: the fields of every kind, which the controller checks when one arrives.

A host may be compromised: what has another shape is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from runner.core.wire.codec import Frame, FrameError, abbreviate, bounded, decode
from runner.core.wire.events import COUNT, TIME
from runner.core.wire.facts import PORT, Facts, ProbeResult
from runner.core.wire.files import MAX_INT
from runner.core.wire.paths import RUN_ID
from runner.core.wire.run_info import HostRunStatus, Sample


@dataclass(frozen=True)
class Reply:
    """A reply that has nothing but the id of its request, and perhaps a payload."""

    id: int | None = None


@dataclass(frozen=True)
class Clocks:
    """Both clocks of the host, in seconds."""

    mono: float = field(metadata=TIME)
    wall: float = field(metadata=TIME)


@dataclass(frozen=True)
class Pong(Clocks):
    """That the agent is there, and for how many seconds its disk has not answered."""

    disk_wait_s: float = field(default=0.0, metadata=TIME)


@dataclass(frozen=True)
class FactsReply(Clocks):
    """The facts of the host."""

    facts: Facts


@dataclass(frozen=True)
class Refusal:
    """A request that could not be carried out."""

    reason: str


@dataclass(frozen=True)
class StreamData:
    """Bytes of a file, or of what a command writes; of a download, the file as it is now, too."""

    file: str
    offset: int = field(metadata=COUNT)
    error: str = ""  # why the rest cannot be read
    eof: bool = False  # nothing more of this file will come
    size: int = field(default=0, metadata=COUNT)  # in bytes
    mtime_ns: int = field(default=0, metadata=bounded(-MAX_INT, MAX_INT))
    compressed: bool = False


@dataclass(frozen=True)
class InventoryEnd:
    """The end of the list of a run's files."""

    omitted_count: int = field(metadata=COUNT)  # files beyond the limit
    skip_count: int = field(metadata=COUNT)
    skipped: tuple[tuple[str, ...], ...]  # a path and a reason, of the first of these


@dataclass(frozen=True)
class MissingFiles:
    """The files of a release that the host lacks, by their indices in the manifest."""

    missing: tuple[int, ...]


@dataclass(frozen=True)
class Store:
    """The store of releases: `store_id` is the same on all hosts that share the disk."""

    store_id: str  # "" if unknown


@dataclass(frozen=True)
class Taken:
    """So many bytes of the stream of missing files were written."""

    bytes: int = field(metadata=COUNT)


@dataclass(frozen=True)
class Stored:
    """The host has a release; `new` if it did not have it before."""

    new: bool


@dataclass(frozen=True)
class Listening:
    """The port on which the host listens for its peers."""

    port: int = field(metadata=PORT)
    error: str


@dataclass(frozen=True)
class Probed:
    """The results of a network probe."""

    results: tuple[ProbeResult, ...]


@dataclass(frozen=True)
class RunList:
    """The runs of the host, and how many others cannot be read."""

    runs: tuple[HostRunStatus, ...]
    unreadable: int = field(metadata=COUNT)
    now: float = field(metadata=TIME)  # in seconds since 1970


@dataclass(frozen=True)
class Sampled:
    """The load of the host."""

    sample: Sample


@dataclass(frozen=True)
class RelaunchMarked:
    """The mark of a pending relaunch was made."""

    stop_requested: bool  # for the run, on this host


@dataclass(frozen=True)
class Cleaned:
    """What was removed, and the old runs in use."""

    runs: tuple[str, ...] = field(metadata=RUN_ID)
    releases: tuple[str, ...]
    environments: tuple[str, ...]
    in_use: tuple[str, ...]
    bytes: int = field(metadata=COUNT)


@dataclass(frozen=True)
class Leftovers:
    """What was killed of a run that a supervisor had left, and the pids that survived it."""

    killed: int = field(metadata=COUNT)
    survivors: tuple[int, ...]


@dataclass(frozen=True)
class CommandExited:
    """The end of a command: its exit code, or minus the signal that ended it."""

    code: int | None = field(default=None, metadata=bounded(-128, 255))
    survivors: tuple[int, ...] = ()
    timed_out: bool = False
    error: str = ""


REPLY_TYPES: dict[str, type[Any]] = {
    **dict.fromkeys(("following", "command_sent", "in_progress", "inventory_page"), Reply),
    **dict.fromkeys(("absent", "run", "stacks_dumped", "streamed"), Reply),
    "cleaned": Cleaned,
    "data": StreamData,
    "events": StreamData,
    "exited": CommandExited,
    "facts": FactsReply,
    "hello": Clocks,
    "inventory_end": InventoryEnd,
    "leftovers": Leftovers,
    "listening": Listening,
    "missing": MissingFiles,
    "pong": Pong,
    "probed": Probed,
    "refused": Refusal,
    "relaunch_pending": RelaunchMarked,
    "runs": RunList,
    "sampled": Sampled,
    "store": Store,
    "stored": Stored,
    "taken": Taken,
}
"""The fields of each kind of reply; those of a kind that is not in the table are refused."""


def checked_reply(frame: Frame) -> Frame:
    """Return a frame of an agent with its fields decoded, and no others.

    Raises:
        FrameError: It is of no known kind, or has not the fields of its kind.
    """
    if frame.kind not in REPLY_TYPES:
        raise FrameError(f"an unknown reply {abbreviate(frame.kind)}")
    try:
        reply = decode(REPLY_TYPES[frame.kind], frame.data)
        data = {"id": decode(Reply, frame.data).id, **vars(reply)}
    except ValueError as error:
        raise FrameError(f"a malformed reply {frame.kind!r}: {error}") from None
    return Frame(frame.kind, data, frame.payload)
