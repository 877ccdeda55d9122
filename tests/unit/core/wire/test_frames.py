"""Frames survive being cut anywhere; anything else is refused."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.wire.codec import LENGTHS, MAX_HEADER, MAX_PAYLOAD, Frame, FrameDecoder, FrameError

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
