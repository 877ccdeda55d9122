"""The lock files of Python's package managers, as far as a check needs them: names and versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from packaging.utils import canonicalize_name


@dataclass(frozen=True)
class LockedPackage:
    """One entry of a lock file.

    Attributes:
        name: Normalised.
        version: "" for what has none, such as a folder.
        marker: Where it is wanted; "" for everywhere.
        is_main: Whether the project wants it, and not just an extra or a group for development.
    """

    name: str
    version: str
    marker: str = ""
    is_main: bool = True


LockParser = Callable[[Mapping[str, Any]], Iterator[LockedPackage]]


def _uv(lock: Mapping[str, Any]) -> Iterator[LockedPackage]:
    """https://docs.astral.sh/uv/concepts/projects/layout/#the-lockfile; markers are on its edges.

    So only what the project at the lock's own folder names is known to be wanted.
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


def _poetry(lock: Mapping[str, Any]) -> Iterator[LockedPackage]:
    """poetry.lock; before Poetry 2 it had no groups, and markers on its edges only."""
    for package in lock.get("package", []):
        markers = package.get("markers", "")
        marker = markers.get("main", "") if isinstance(markers, dict) else markers
        is_main = "main" in package.get("groups", ()) and not package.get("optional")
        yield LockedPackage(
            canonicalize_name(package["name"]), str(package["version"]), str(marker), is_main
        )


def _pylock(lock: Mapping[str, Any]) -> Iterator[LockedPackage]:
    """https://packaging.python.org/en/latest/specifications/pylock-toml/."""
    for package in lock.get("packages", []):
        name, version = canonicalize_name(package["name"]), str(package.get("version", ""))
        yield LockedPackage(name, version, str(package.get("marker", "")))


def _pdm(lock: Mapping[str, Any]) -> Iterator[LockedPackage]:
    """pdm.lock."""
    for package in lock.get("package", []):
        name, version = canonicalize_name(package["name"]), str(package.get("version", ""))
        is_main = "default" in package.get("groups", ())
        yield LockedPackage(name, version, str(package.get("marker", "")), is_main)


LOCK_PARSERS: dict[str, LockParser] = {
    "uv.lock": _uv,
    "poetry.lock": _poetry,
    "pylock.toml": _pylock,
    "pdm.lock": _pdm,
}
"""Every kind by its file name, in the order in which they count."""
