"""Codec of dataclasses to JSON and back, and the frames of messages that carry it.

What is decoded may come from a host that lies: types and limits of all fields are checked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import json
import math
import struct
import zlib
from dataclasses import dataclass, field
from typing import (
    Any,
    Callable,
    Dict,
    Hashable,
    Iterator,
    List,
    Mapping,
    Pattern,
    Tuple,
    Type,
    TypeVar,
    Union,
    get_type_hints,
)

T = TypeVar("T")

MAX_INT = 1 << 64
"""Larger than any size in bytes and any time in nanoseconds."""

_NOUNS = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}


def bounded(low: float, high: float) -> Dict[str, Any]:
    """Return the metadata of a field whose decoded number must lie between two others."""
    return {"bounds": (low, high)}


def matching(pattern: Pattern[str]) -> Dict[str, Any]:
    """Return the metadata of a field whose decoded text must match all of a pattern."""
    return {"pattern": pattern}


def parsed_by(parser: Callable[[str], object]) -> Dict[str, Any]:
    """Return the metadata of a field for whose decoded texts a parser raises no ValueError."""
    return {"parser": parser}


def parse_json(text: Union[str, bytes]) -> Any:
    """Return the data of a JSON text; raise ValueError, also if it is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def encode(value: Any) -> Any:
    """Return `value` as plain JSON data: a dataclass becomes an object, a tuple or set a list."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if isinstance(value, set):
        return [encode(item) for item in sorted(value)]
    return value


def decode(cls: Type[T], data: Any) -> T:
    """Build the dataclass `cls` from JSON data; fields it does not know are ignored.

    Raise ValueError for data of another shape, and for a field that is out of its limits.
    """
    if not isinstance(data, dict):
        raise ValueError(f"{cls.__name__}: expected an object, got {type(data).__name__}")
    values = {}
    for name, hint, metadata, is_required in _fields(cls):  # type: ignore[arg-type]  # hashable
        if name in data:
            try:
                values[name] = decode_field(hint, metadata, data[name])
            except ValueError as error:
                raise ValueError(f"{cls.__name__}.{name}: {error}") from None
        elif is_required or "pattern" in metadata:  # that one names something
            raise ValueError(f"{cls.__name__}.{name} is missing")
    return cls(**values)


@functools.lru_cache(maxsize=None)
def _fields(cls: Hashable) -> List[Tuple[str, Any, Mapping[str, Any], bool]]:
    """Return the name, the type and the metadata of each field, and whether it has no default."""
    hints = get_type_hints(cls)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    missing = dataclasses.MISSING
    return [
        (f.name, hints[f.name], f.metadata, f.default is missing and f.default_factory is missing)
        for f in fields
    ]


def decode_field(hint: Any, metadata: Mapping[str, Any], data: Any) -> Any:
    """Return a value of the type `hint`, each of several within the limits of a field.

    Raise ValueError if it is not.
    """
    value = _decode(hint, data)
    items = value if isinstance(value, tuple) else () if value is None else (value,)
    for item in items if metadata else ():
        if "bounds" in metadata and not metadata["bounds"][0] <= item <= metadata["bounds"][1]:
            low, high = metadata["bounds"]
            raise ValueError(f"{abbreviate(item)} is not from {low:g} to {high:g}")
        if "pattern" in metadata and not metadata["pattern"].fullmatch(item):
            raise ValueError(f"{abbreviate(item)} is not legal")
        if "parser" in metadata:
            metadata["parser"](item)
    return value


def _decode(hint: Any, value: Any) -> Any:
    if hint in _NOUNS:
        return _decode_scalar(hint, value)
    origin: Any = getattr(hint, "__origin__", None)
    args: Any = getattr(hint, "__args__", ())
    if origin is Union or (origin is None and args):  # the latter: X | Y
        return _decode_one_of(args, value)
    if origin is tuple:
        items = _require_type((list, tuple), value)
        return tuple(_decode(args[0], item) for item in items)
    if origin is dict:
        pairs = _require_type(dict, value).items()
        return {key: _decode(args[1], item) for key, item in pairs}
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        if value not in [member.value for member in hint]:
            raise ValueError(f"{abbreviate(value)} is not a valid {hint.__name__}")
        return hint(value)
    return value if hint is Any or isinstance(value, hint) else decode(hint, value)


def _decode_one_of(hints: Tuple[Any, ...], value: Any) -> Any:
    if value is None and type(None) in hints:
        return None
    *others, last = (hint for hint in hints if hint is not type(None))
    for other in others:
        with contextlib.suppress(ValueError):
            return _decode(other, value)
    return _decode(last, value)


def _decode_scalar(hint: Any, value: Any) -> Any:
    kind = type(value)  # exactly: a bool is no int
    is_legal = kind is hint or (hint is float and kind is int)
    if is_legal and hint in (int, float):
        is_legal = abs(value) <= MAX_INT if kind is int else math.isfinite(value)
    if not is_legal:
        raise ValueError(f"expected {_NOUNS[hint]}, got {abbreviate(value)}")
    return float(value) if hint is float else value


def abbreviate(value: Any) -> str:
    is_scalar = value is None or type(value) in _NOUNS
    return f"{value!r:.80}" if is_scalar else type(value).__name__


def _require_type(expected: Any, value: Any) -> Any:
    if not isinstance(value, expected):
        raise ValueError(f"expected several values, got {abbreviate(value)}")
    return value


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
    kind: str
    data: Dict[str, Any] = field(default_factory=dict)
    payload: bytes = b""
    size: int = field(default=0, compare=False)  # of one that came, in bytes

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
        """Yield every frame that a chunk completes; raise FrameError for what cannot be one."""
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
    return Frame(kind, data, payload, LENGTHS.size + len(header) + len(payload))


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
