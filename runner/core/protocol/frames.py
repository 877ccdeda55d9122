"""Frames: the messages between controller and agent, after a magic line.

A frame is two big-endian 32-bit lengths, a JSON header, and a raw payload. Anything before the
magic line is a banner. Unknown header fields are ignored, unknown kinds are refused.
"""

from __future__ import annotations

import json
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator

from runner.core.codec import parse_json

PROTOCOL = 1
STAYS = "stays"
"""The word for an agent with whose end everything that it has started is ended there."""

MAGIC = b"\n\x01runner-wire\x01\n"
LENGTHS = struct.Struct(">II")
INITIAL_CREDIT = 512 << 10
"""Bytes of files and of a command's output that an agent may send before it is granted more."""

MAX_HEADER = 16 << 20
MAX_PAYLOAD = 64 << 20


class FrameError(ValueError):
    """The other side sent something that is no frame, or no possible answer."""


@dataclass(frozen=True)
class Frame:
    """One message: its kind, its fields, and raw bytes."""

    kind: str
    data: Dict[str, Any] = field(default_factory=dict)
    payload: bytes = b""

    def pack(self) -> bytes:
        return self.header_bytes() + self.payload

    def header_bytes(self) -> bytes:
        """Return the lengths and the header; the payload has to follow."""
        header = json.dumps({**self.data, "kind": self.kind}, separators=(",", ":")).encode()
        return LENGTHS.pack(len(header), len(self.payload)) + header


class FrameDecoder:
    """Decoder of a stream of bytes, cut anywhere, into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """Yield every frame that a chunk completes.

        Raises:
            FrameError: The bytes cannot be a frame.
        """
        self._buffer += chunk
        while len(self._buffer) >= LENGTHS.size:
            header_size, payload_size = LENGTHS.unpack_from(self._buffer)
            if header_size > MAX_HEADER or payload_size > MAX_PAYLOAD:
                raise FrameError("a frame of impossible size")
            end = LENGTHS.size + header_size + payload_size
            if len(self._buffer) < end:
                return
            header_end = LENGTHS.size + header_size
            header = bytes(self._buffer[LENGTHS.size : header_end])
            payload = bytes(self._buffer[header_end:end])
            del self._buffer[:end]
            yield _parse(header, payload)


def _parse(header: bytes, payload: bytes) -> Frame:
    try:
        data = parse_json(header)
    except ValueError:
        data = None
    kind = data.pop("kind", None) if isinstance(data, dict) else None
    if not isinstance(kind, str):
        raise FrameError("a frame without a readable header")
    return Frame(kind, data, payload)


def decompress(data: bytes, max_size: int) -> bytes:
    """Decompress a payload; raise ValueError if it is larger than `max_size`, or incomplete."""
    decompressor = zlib.decompressobj()
    try:
        content = decompressor.decompress(data, max_size + 1)
    except zlib.error as error:
        raise ValueError(f"cannot be decompressed: {error}") from None
    if len(content) > max_size or not decompressor.eof:
        raise ValueError("is larger than announced, or incomplete")
    return content
