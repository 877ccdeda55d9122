"""Files of a record as data; what cannot be read is named among the problems."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeVar

from runner.core.codec import decode, parse_json
from runner.core.errors import reason_of
from runner.core.text import format_size

T = TypeVar("T")

MAX_SIZE = 64 << 20  # bytes of a file that are read
MAX_PROBLEMS = 100
MAX_DEPTH = 40  # of YAML: more would crash its C code


class Problems:
    """What of a record could not be read: a line for each file."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def add(self, name: object, reason: object) -> None:
        """Note why a file could not be read."""
        text = f"{name}: {' '.join(str(reason).split())}"[:300]
        if len(self.lines) < MAX_PROBLEMS and text not in self.lines:
            self.lines.append(text)


def read_bytes(
    path: Path, problems: Problems, *, optional: bool = True, max_size: int = MAX_SIZE
) -> bytes:
    """Return a file, b"" if it cannot be read; of a larger one its first and its last lines."""
    try:
        if path.exists() and not path.is_file():
            raise OSError(0, "it is no regular file")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= max_size:
                return file.read()
            head = file.read(max_size // 2).rpartition(b"\n")[0]
            file.seek(size - max_size // 2)
            tail = file.read().partition(b"\n")[2]
    except OSError as error:
        if not (optional and isinstance(error, FileNotFoundError)):
            problems.add(path.name, reason_of(error))
        return b""
    left_out = format_size(size - len(head) - len(tail))
    problems.add(path.name, f"{left_out} in the middle are left out")
    return head + b"\n" + tail


def read_lines(path: Path, problems: Problems, *, max_size: int = MAX_SIZE) -> list[bytes]:
    """Return the lines of a file, without a torn last one."""
    lines = read_bytes(path, problems, max_size=max_size).split(b"\n")
    return [line for line in lines[:-1] if line]


def read_json(path: Path, problems: Problems, *, optional: bool = True) -> Any:
    """Return the data of a JSON file, None if it cannot be read."""
    data = read_bytes(path, problems, optional=optional)
    try:
        return parse_json(data) if data else None
    except ValueError as error:
        problems.add(path.name, error)
        return None


def read_as(cls: type[T], path: Path, problems: Problems, *, optional: bool = True) -> T | None:
    """Return the data of a JSON file as a dataclass, None if it is not one."""
    data = read_json(path, problems, optional=optional)
    return None if data is None else decoded(cls, data, path.name, problems)


def decoded(cls: type[T], data: Any, name: object, problems: Problems) -> T | None:
    """Return JSON data as a dataclass, None if it is not one."""
    try:
        return decode(cls, data)
    except (ValueError, TypeError, RecursionError) as error:
        problems.add(name, error)
        return None


def read_yaml(kind: type[T], path: Path, problems: Problems) -> T | None:
    """Return the mapping or list of a YAML file, None if it cannot be read."""
    import yaml  # noqa: PLC0415 (with C code: most verbs need none)

    data = read_bytes(path, problems)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    depth = 0
    try:
        for event in yaml.parse(data, loader):
            name = type(event).__name__
            depth += name.endswith("StartEvent") - name.endswith("EndEvent")
            if depth > MAX_DEPTH or name == "AliasEvent":
                raise ValueError("it is nested too deeply, or has aliases")
        found = yaml.load(data, loader)  # noqa: S506 (a safe one)
        if isinstance(found, kind) or not data:
            return found or None
        raise ValueError(f"it is no {kind.__name__}")
    except (yaml.YAMLError, ValueError, TypeError, AttributeError) as error:
        problems.add(path.name, error)
        return None
