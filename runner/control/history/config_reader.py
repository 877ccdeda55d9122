"""Reader of the configuration on record: YAML as plain data, which no alias can make endless."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from runner.control.history.bounded_reader import Problems, read_bytes

MAX_SIZE = 4 << 20  # bytes
MAX_VALUES, MAX_DEPTH = 200_000, 40
MAX_TEXT = 10_000
MAX_NUMBER = 1 << 64
MERGE_KEY = "<<"
_DIGITS = "0123456789abcdefABCDEF_xob:+-."


def read_yaml(path: Path, problems: Problems) -> Any:
    """Return the data of a YAML file, None if it cannot be read."""
    import yaml  # noqa: PLC0415 (with C code: most verbs need none)

    data = read_bytes(path, problems, optional=True)
    if data is None:
        return None
    if len(data) > MAX_SIZE:
        problems.add(path.name, f"it is larger than {MAX_SIZE >> 20} MiB")
        return None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_events(yaml.parse(data, loader))
        return _Copy().of(yaml.load(data, loader))  # noqa: S506 (a safe one)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError, AttributeError) as error:
        problems.add(path.name, " ".join(str(error).split()))
        return None


def _check_events(events: Iterable[Any]) -> None:
    """Raise ValueError for what must not be loaded.

    What is nested too deeply crashes the C code; merges of merges grow without end, and a number of
    a megabyte, such as 1:59:59…, takes minutes. No configuration of ours has any of them.
    """
    depth = 0
    for event in events:
        name = type(event).__name__
        if name == "ScalarEvent" and event.implicit[0]:  # written without quotes
            if event.value == MERGE_KEY:
                raise ValueError("it has a merge key")
            if len(event.value) > MAX_TEXT and not event.value.strip(_DIGITS):
                raise ValueError("it has a number that is too long")
        depth += name.endswith("StartEvent") - name.endswith("EndEvent")
        if depth > MAX_DEPTH:
            raise ValueError("it is nested too deeply")


def read_config(path: Path, problems: Problems) -> Mapping[str, Any]:
    """Return the nested configuration, {} if it cannot be read."""
    data = read_yaml(path, problems)
    if data is None or isinstance(data, dict):
        return data or {}
    problems.add(path.name, "it is no mapping")
    return {}


class _Copy:
    """A copy with JSON's types, bounded in size: aliases may stand for more than there is room."""

    def __init__(self) -> None:
        self._count = 0

    def of(self, value: Any, depth: int = 0) -> Any:
        """Return the copy of a value; raise ValueError if it is too large."""
        self._count += 1
        if self._count > MAX_VALUES or depth > MAX_DEPTH:
            raise ValueError("it has too many values")
        if isinstance(value, dict):
            return {str(key)[:200]: self.of(item, depth + 1) for key, item in value.items()}
        if isinstance(value, int) and abs(value) > MAX_NUMBER:
            raise ValueError("it has a number that is too large")
        if isinstance(value, (list, tuple, set)):
            return [self.of(item, depth + 1) for item in value]
        if value is None or isinstance(value, (bool, int, float)):
            return value
        return str(value)[:MAX_TEXT]
