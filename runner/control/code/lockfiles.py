"""The lock files of Python's package managers, as far as a check needs them: names and versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.utils import canonicalize_name


@dataclass(frozen=True)
class Locked:
    """One entry of a lock file.

    Attributes:
        name: Normalised.
        version: "" for what has none, such as a folder.
        marker: Where it is wanted; "" for everywhere.
        main: Whether the project wants it, and not just an extra or a group for development.
    """

    name: str
    version: str
    marker: str = ""
    main: bool = True


Parse = Callable[[Mapping[str, Any]], Iterator[Locked]]


def _uv(lock: Mapping[str, Any]) -> Iterator[Locked]:
    """https://docs.astral.sh/uv/concepts/projects/layout/#the-lockfile; markers are on its edges.

    So only what the project at the lock's own folder names is known to be wanted.
    """
    packages = lock.get("package", [])
    roots = [each for each in packages if "." in each.get("source", {}).values()]
    edges = {
        canonicalize_name(edge["name"]): str(edge.get("marker", ""))
        for root in roots
        for edge in root.get("dependencies", [])
    }
    for each in packages:
        name = canonicalize_name(each["name"])
        yield Locked(name, str(each.get("version", "")), edges.get(name, ""), name in edges)


def _poetry(lock: Mapping[str, Any]) -> Iterator[Locked]:
    """poetry.lock; before Poetry 2 it had no groups, and markers on its edges only."""
    for each in lock.get("package", []):
        markers = each.get("markers", "")
        marker = markers.get("main", "") if isinstance(markers, dict) else markers
        main = "main" in each.get("groups", ()) and not each.get("optional")
        yield Locked(canonicalize_name(each["name"]), str(each["version"]), str(marker), main)


def _pylock(lock: Mapping[str, Any]) -> Iterator[Locked]:
    """https://packaging.python.org/en/latest/specifications/pylock-toml/."""
    for each in lock.get("packages", []):
        name, version = canonicalize_name(each["name"]), str(each.get("version", ""))
        yield Locked(name, version, str(each.get("marker", "")))


def _pdm(lock: Mapping[str, Any]) -> Iterator[Locked]:
    """pdm.lock."""
    for each in lock.get("package", []):
        name, version = canonicalize_name(each["name"]), str(each.get("version", ""))
        main = "default" in each.get("groups", ())
        yield Locked(name, version, str(each.get("marker", "")), main)


LOCKS: dict[str, Parse] = {
    "uv.lock": _uv,
    "poetry.lock": _poetry,
    "pylock.toml": _pylock,
    "pdm.lock": _pdm,
}
"""Every kind by its file name, in the order in which they count."""
