"""Replies of an agent: the fields of every kind, which the controller checks when one arrives.

A host may be compromised: what has another shape is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from runner.core.wire.codec import Frame, FrameError, abbreviate, bounded, decode_field
from runner.core.wire.events import COUNT, TIME
from runner.core.wire.facts import PORT, Facts, ProbeResult
from runner.core.wire.paths import RUN_ID
from runner.core.wire.run_info import HostRunStatus, Sample

_REQUIRED = object()


class Field(NamedTuple):
    """A field of a reply: its type, its limits as in `codec`, and what stands for a missing one."""

    hint: Any
    limits: Mapping[str, Any] = MappingProxyType({})
    default: Any = _REQUIRED


_ID = Field(int | None, default=None)  # of the request
_SIZE = Field(int, COUNT)
_SECONDS = Field(float, TIME)
_FLAG = Field(bool)
_TEXT = Field(str)
_TEXTS = Field(tuple[str, ...])
_NUMBERS = Field(tuple[int, ...])
_CLOCKS = {"mono": _SECONDS, "wall": _SECONDS}
_NOTHING: dict[str, Field] = {}
_STREAM = {  # bytes of a file, or of what a command writes
    "file": _TEXT,
    "offset": _SIZE,
    "error": Field(str, default=""),  # why the rest cannot be read
    "eof": Field(bool, default=False),  # nothing more of this file will come
}

REPLIES: dict[str, dict[str, Field]] = {
    "cleaned": {
        "runs": Field(tuple[str, ...], RUN_ID),
        "releases": _TEXTS,
        "environments": _TEXTS,
        "kept": _TEXTS,
        "in_use": _TEXTS,
        "bytes": _SIZE,
    },
    "command_sent": _NOTHING,
    "data": _STREAM,
    "events": _STREAM,
    "exited": {
        "code": Field(int | None, bounded(-128, 255), None),  # or minus a signal
        "survivors": Field(tuple[int, ...], default=()),
        "timed_out": Field(bool, default=False),
        "error": Field(str, default=""),
    },
    "facts": {**_CLOCKS, "facts": Field(Facts)},
    "following": _NOTHING,
    "hello": _CLOCKS,
    "in_progress": _NOTHING,
    "inventory": {
        "omitted_count": _SIZE,  # files beyond the limit
        "skipped": _TEXTS,  # what was left out, and why
    },
    "leftovers": {"killed": _SIZE, "survivors": _NUMBERS},
    "listening": {"port": Field(int, PORT), "error": _TEXT},
    "missing": {"missing": _NUMBERS},  # indices of files in the manifest
    "pong": {**_CLOCKS, "disk_wait_s": Field(float, TIME, 0.0)},
    "probed": {"results": Field(tuple[ProbeResult, ...])},
    "refused": {"reason": _TEXT},
    "relaunch_pending": {"stop_requested": _FLAG},
    "run": _NOTHING,
    "runs": {
        "runs": Field(tuple[HostRunStatus, ...]),
        "unreadable": _SIZE,
        "now": _SECONDS,  # since 1970
    },
    "sampled": {"sample": Field(Sample)},
    "stacks_dumped": _NOTHING,
    "store": {"store_id": _TEXT},  # the same on all hosts that share the disk, "" if unknown
    "stored": {"new": _FLAG},
    "streamed": _NOTHING,
    "taken": {"bytes": _SIZE},
}
"""The fields of each kind of reply, besides the id of its request and perhaps a payload."""


def checked_reply(frame: Frame) -> Frame:
    """Return a frame of an agent with the fields of its kind, decoded; raise FrameError."""
    if frame.kind not in REPLIES:
        raise FrameError(f"an unknown reply {abbreviate(frame.kind)}")
    data = {}
    for name, field in {"id": _ID, **REPLIES[frame.kind]}.items():
        value = frame.data.get(name, field.default)
        if value is _REQUIRED:
            raise FrameError(f"a malformed reply {frame.kind!r}: {name} is missing")
        try:
            data[name] = decode_field(field.hint, field.limits, value)
        except ValueError as error:
            raise FrameError(f"a malformed reply {frame.kind!r}: {name}: {error}") from None
    return replace(frame, data=data)
