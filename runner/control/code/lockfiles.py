"""Parsers of lock files (uv.lock, pylock.toml): the names and versions of packages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.utils import canonicalize_name


@dataclass(frozen=True)
class LockedPackage:
    """One entry of a lock file.

    Attributes:
        name: Its normalised name.
        version: Its version; "" if it has none, such as a folder.
        marker: The environments it is needed in (PEP 508); "" for all.
        is_main: Whether the project itself needs it, not only an extra or a development group.
    """

    name: str
    version: str
    marker: str = ""
    is_main: bool = True


LockParser = Callable[[Mapping[str, Any]], Iterator[LockedPackage]]


def _uv(lock: Mapping[str, Any]) -> Iterator[LockedPackage]:
    """Yield the packages of a uv.lock (docs.astral.sh/uv/concepts/projects/layout/#the-lockfile).

    Markers are on the edges of its graph, so only direct dependencies of the project are main.
    """
    packages = lock.get("package", [])
    roots = [package for package in packages if "." in package.get("source", {}).values()]
    edges = {
        canonicalize_name(edge["name"]): str(edge.get("marker", ""))
        for root in roots
        for edge in root.get("dependencies", [])
    }
    for package in packages:
        name = canonicalize_name(package["name"])
        yield LockedPackage(
            name, str(package.get("version", "")), edges.get(name, ""), name in edges
        )


def _pylock(lock: Mapping[str, Any]) -> Iterator[LockedPackage]:
    """Yield the packages of a pylock.toml (packaging.python.org, specifications/pylock-toml)."""
    for package in lock.get("packages", []):
        name, version = canonicalize_name(package["name"]), str(package.get("version", ""))
        yield LockedPackage(name, version, str(package.get("marker", "")))


LOCK_PARSERS: dict[str, LockParser] = {"uv.lock": _uv, "pylock.toml": _pylock}
"""The parser of each lock file, by file name; the first file found is used."""
