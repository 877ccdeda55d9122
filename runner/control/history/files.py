"""Files of a record as data; what cannot be read is named among the problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from runner.core.errors import reason_of
from runner.core.wire.codec import decode, parse_json
from runner.core.wire.text import format_size

T = TypeVar("T")

MAX_SIZE = 64 << 20  # bytes of a file that are read
MAX_DEPTH = 40  # of YAML: more would crash its C code


class RecordFiles:
    """The files of one record; `problems` are what could not be read, a line for each file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[str] = []

    def note(self, name: str, reason: object) -> None:
        text = f"{name}: {' '.join(str(reason).split())}"[:300]
        if text not in self.problems:
            self.problems.append(text)

    def read(self, path: Path, max_size: int = MAX_SIZE) -> bytes:
        """Return a file, b"" if it cannot be read; of a larger one its first and last lines."""
        try:
            if not path.is_file():
                if path.exists():
                    self.note(path.name, "it is no regular file")
                return b""
            size = path.stat().st_size
            with path.open("rb") as file:
                if size <= max_size:
                    return file.read(max_size)
                head = file.read(max_size // 2).rpartition(b"\n")[0]
                file.seek(size - max_size // 2)
                tail = file.read(max_size // 2).partition(b"\n")[2]
        except OSError as error:
            self.note(path.name, reason_of(error))
            return b""
        left_out = format_size(size - len(head) - len(tail))
        self.note(path.name, f"{left_out} in the middle are left out")
        return head + b"\n" + tail

    def take_lines(
        self, path: Path, noun: str, take: Callable[[bytes], None], max_size: int = MAX_SIZE
    ) -> None:
        """Have each line taken, but for a torn last one; those that are not ours are counted."""
        bad_count = 0
        for line in filter(None, self.read(path, max_size).split(b"\n")[:-1]):
            try:
                take(line)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
                bad_count += 1
        if bad_count:
            self.note(path.name, f"{bad_count:,} lines are no {noun}")

    def decoded(self, cls: type[T], name: str) -> T | None:
        """Return the data of a JSON file as a dataclass, None if it is not one."""
        data = self.read(self.folder / name)
        try:
            return decode(cls, parse_json(data)) if data else None
        except (ValueError, TypeError, RecursionError) as error:
            self.note(name, error)
            return None

    def config(self, name: str) -> Mapping[str, Any]:
        """Return a configuration in YAML, {} if it cannot be read; a host may have sent it."""
        import yaml  # noqa: PLC0415 (with C code: most verbs need none)

        data = self.read(self.folder / name)
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
            self.note(name, error)
            return {}
        return config or {}
