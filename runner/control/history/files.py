"""Files of a record as data; what cannot be read is named among the problems."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from runner.core.errors import reason_of
from runner.core.wire.codec import decode, parse_json
from runner.core.wire.text import format_size

T = TypeVar("T")

MAX_SIZE = 64 << 20  # bytes of a file that are read
MAX_DEPTH = 40  # of YAML: more would crash its C code


class Problems:
    """What of a record could not be read: a line for each file."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, name: str, reason: object) -> None:
        text = f"{name}: {' '.join(str(reason).split())}"[:300]
        if text not in self.lines:
            self.lines.append(text)


def read_bytes(path: Path, problems: Problems, *, max_size: int = MAX_SIZE) -> bytes:
    """Return a file, b"" if it cannot be read; of a larger one its first and its last lines."""
    try:
        if not path.is_file():
            if path.exists():
                problems.add(path.name, "it is no regular file")
            return b""
        size = path.stat().st_size
        with path.open("rb") as file:
            if size <= max_size:
                return file.read(max_size)
            head = file.read(max_size // 2).rpartition(b"\n")[0]
            file.seek(size - max_size // 2)
            tail = file.read(max_size // 2).partition(b"\n")[2]
    except OSError as error:
        problems.add(path.name, reason_of(error))
        return b""
    left_out = format_size(size - len(head) - len(tail))
    problems.add(path.name, f"{left_out} in the middle are left out")
    return head + b"\n" + tail


def read_lines(path: Path, problems: Problems, *, max_size: int = MAX_SIZE) -> list[bytes]:
    """Return the lines of a file, without a torn last one."""
    lines = read_bytes(path, problems, max_size=max_size).split(b"\n")
    return [line for line in lines[:-1] if line]


def read_as(cls: type[T], path: Path, problems: Problems) -> T | None:
    """Return the data of a JSON file as a dataclass, None if it is not one."""
    data = read_bytes(path, problems)
    try:
        return decode(cls, parse_json(data)) if data else None
    except (ValueError, TypeError, RecursionError) as error:
        problems.add(path.name, error)
        return None


def read_config(path: Path, problems: Problems) -> Mapping[str, Any]:
    """Return the configuration in a YAML file, {} if it cannot be read; a host may have sent it."""
    import yaml  # noqa: PLC0415 (with C code: most verbs need none)

    data = read_bytes(path, problems)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    try:
        for event in yaml.parse(data, loader):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            if depth > MAX_DEPTH or isinstance(event, yaml.AliasEvent):
                raise ValueError("it is nested too deeply, or has aliases")
        config = yaml.load(data, loader)  # noqa: S506 (a safe one)
        if not isinstance(config or {}, dict):
            raise ValueError("it is no mapping")
    except (yaml.YAMLError, ValueError) as error:
        problems.add(path.name, error)
        return {}
    return config or {}
