"""Codec of dataclasses to JSON and back, for messages and files."""

from __future__ import annotations

import dataclasses
import enum
import functools
from typing import Any, Dict, Hashable, Type, TypeVar, Union, get_type_hints

T = TypeVar("T")


def encode(value: Any) -> Any:
    """Return `value` as plain JSON data; dataclasses become objects, tuples become lists."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    return value


def decode(cls: Type[T], data: Any) -> T:
    """Build the dataclass `cls` from JSON data; fields it does not know are ignored.

    Raises:
        ValueError: The data does not have the shape of `cls`.
    """
    if not isinstance(data, dict):
        raise ValueError(f"{cls.__name__}: expected an object, got {type(data).__name__}")
    hints = _hints(cls)  # type: ignore[arg-type]  # mypy doubts that a class is hashable
    values = {name: _decode(hint, data[name]) for name, hint in hints.items() if name in data}
    try:
        return cls(**values)
    except TypeError as error:
        raise ValueError(f"{cls.__name__}: {error}") from None


@functools.lru_cache(maxsize=None)
def _hints(cls: Hashable) -> Dict[str, Any]:
    hints = get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}  # type: ignore[arg-type]


def _decode(hint: Any, value: Any) -> Any:
    origin = getattr(hint, "__origin__", None)
    if origin is Union:
        inner = [arg for arg in hint.__args__ if arg is not type(None)]
        return None if value is None else _decode(inner[0], value)
    if origin is tuple:
        items = _require_type((list, tuple), value)
        return tuple(_decode(hint.__args__[0], item) for item in items)
    if origin is dict:
        pairs = _require_type(dict, value).items()
        return {key: _decode(hint.__args__[1], item) for key, item in pairs}
    if dataclasses.is_dataclass(hint):
        return decode(hint, value)  # type: ignore[arg-type]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint(value)
    return value


def _require_type(expected: Any, value: Any) -> Any:
    if not isinstance(value, expected):
        raise ValueError(f"expected several values, got {type(value).__name__}")
    return value
