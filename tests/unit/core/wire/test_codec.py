"""Data goes to JSON and comes back the same, and frames survive being cut anywhere."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.outcome.attempt_events import NodeResult, RankResult
from runner.core.outcome.verdict import Verdict
from runner.core.results import PullResult
from runner.core.wire.codec import (
    LENGTHS,
    MAX_HEADER,
    MAX_PAYLOAD,
    Frame,
    FrameDecoder,
    FrameError,
    decode,
    encode,
)
from runner.core.wire.facts import Facts, FactsRequest, Gpu
from tests.golden.builders import failed
from tests.unit.control.lying_host import BODIES, FACTS, INFO, LIAR, PLAN

WHOLE = Verdict(
    "failed",
    1,
    0.5,
    failed("a", 1, -9),
    unverified=("b",),
    nodes={"a": NodeResult(1, survivors=(4711,))},
    ranks={"1": RankResult("a", None, 9, traceback="ß→🙂\x00\x1b", facts={"path": "/bin"})},
    past_attempts=INFO.past_attempts,
)
ASKED = FactsRequest(node="a", setup=("x",), tool_timeout_s=0.5)
SAMPLES = [*BODIES, FACTS[LIAR], PLAN, INFO, WHOLE, ASKED]


@pytest.mark.parametrize(
    "value",
    SAMPLES,
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_data_survives_json(value: Any) -> None:
    """What is written as JSON text is read back equal, whatever is in it."""
    assert decode(type(value), json.loads(json.dumps(encode(value)))) == value


def test_unknown_fields_are_ignored() -> None:
    """A newer side may say more, at every depth."""
    data = {"node": "a", "moon": 1, "gpus": [{"index": 3, "colour": "red"}]}

    assert decode(Facts, data) == Facts("a", gpus=(Gpu(3),))


def test_a_set_becomes_a_list() -> None:
    """In order, as `pull --json` prints it."""
    assert json.loads(json.dumps(encode(PullResult(folders={"b", "a"}))))["folders"] == ["a", "b"]


TEXT = st.text("".join(map(chr, range(128))) + "ß🙂", max_size=5)
SCALARS = st.none() | st.booleans() | st.integers() | TEXT
DATA = st.dictionaries(
    TEXT.filter(lambda key: key != "kind"), SCALARS | st.lists(SCALARS), max_size=3
)
FRAMES = st.lists(st.builds(Frame, TEXT, DATA, st.binary(max_size=20)), max_size=5)


@given(FRAMES, st.lists(st.integers(0, 400)))
def test_frames_arrive_however_they_are_cut(frames: list[Frame], cuts: list[int]) -> None:
    """The same frames come out in order, each when it is complete, wherever the stream is cut."""
    stream = b"".join(frame.pack() for frame in frames)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    unpacker = FrameDecoder()

    arrived = [
        frame for start, end in pairwise(edges) for frame in unpacker.feed(stream[start:end])
    ]

    assert arrived == frames


def test_data_cannot_change_the_kind() -> None:
    """A field called "kind" never passes for the kind of the frame."""
    (frame,) = FrameDecoder().feed(Frame("read", {"kind": "go"}).pack())

    assert frame.kind == "read"


@pytest.mark.parametrize(
    "sizes",
    [(MAX_HEADER + 1, 0), (1, MAX_PAYLOAD + 1), LENGTHS.unpack(b"Last log")],
    ids=["header", "payload", "text"],
)
def test_impossible_size_is_refused(sizes: tuple[int, int]) -> None:
    """What cannot be a frame is refused at once, not waited for."""
    with pytest.raises(FrameError, match="^a frame of impossible size$"):
        list(FrameDecoder().feed(LENGTHS.pack(*sizes)))


@pytest.mark.parametrize("header", [b"", b"{", b'{"id":1}', b'{"kind":["ping"]}'])
def test_unreadable_header_is_refused(header: bytes) -> None:
    """A header that does not name a kind is no header."""
    with pytest.raises(FrameError, match="^a frame without a readable header$"):
        list(FrameDecoder().feed(LENGTHS.pack(len(header), 0) + header))
