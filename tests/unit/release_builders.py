"""Releases for tests: a manifest, its contents, and how they are put into a store."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from runner.core.wire.files import File, Folder, Manifest, Symlink, release_hash
from runner.core.wire.paths import CODE_FOLDER, release_folder
from runner.host.agent import push
from runner.host.agent.server import AgentContext
from runner.host.process.event_loop import run_steps
from runner.host.process.importer import HostCode
from runner.host.storage.release_store import find_damage
from runner.host.storage.release_writer import ReleaseWriter

T = TypeVar("T")


@dataclass(frozen=True)
class Made:
    manifest: Manifest
    contents: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return release_hash(self.manifest.encode())

    def code(self, workdir: Path) -> Path:
        return Path(release_folder(str(workdir), self.name)) / CODE_FOLDER


def release(
    files: Mapping[str, bytes],
    *,
    modes: Mapping[str, int] | None = None,
    folders: Mapping[str, int] | None = None,
    links: Mapping[str, str] | None = None,
) -> Made:
    """A release with those files; the folders above them need not be named."""
    above = {
        parent
        for path in files
        for parent in map(str, list(Path(path).parents)[:-1])  # without "."
    }
    all_folders = {**dict.fromkeys(above, 0o755), **(folders or {})}
    digests = {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}
    manifest = Manifest(
        folders=tuple(Folder(path, all_folders[path]) for path in sorted(all_folders)),
        files=tuple(
            File(path, (modes or {}).get(path, 0o644), len(files[path]), digests[path])
            for path in sorted(files)
        ),
        links=tuple(Symlink(path, (links or {})[path]) for path in sorted(links or {})),
    )
    return Made(manifest, {digests[path]: files[path] for path in files})


def done(steps: Generator[None, None, T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


def begun(workdir: Path, made: Made) -> ReleaseWriter:
    assembly = ReleaseWriter(str(workdir), made.manifest.encode())
    done(assembly.begin())
    return assembly


def stream(assembly: ReleaseWriter, made: Made) -> bytes:
    return b"".join(made.contents[file.digest] for file in assembly.missing)


def store(workdir: Path, made: Made) -> list[str]:
    assembly = begun(workdir, made)
    came = [file.path for file in assembly.missing]
    done(assembly.write(stream(assembly, made)))
    done(assembly.finish())
    return came


def is_intact(workdir: str, name: str) -> bool:
    return run_steps(find_damage(workdir, name, by_content=True)) == ""


def write_into(path: Path, data: bytes) -> None:
    path.chmod(0o600)
    path.write_bytes(data)
    path.chmod(0o444)


def left_in(workdir: Path) -> list[str]:
    """What lies in the store of releases, unfinished ones too."""
    return sorted(path.name for path in (workdir / "releases").iterdir())


def push_handler(workdir: Path, reply: Callable[..., None]) -> push.Handler:
    return push.Handler(
        AgentContext(reply, lambda: True, repr, HostCode({}), followed_workdir=str(workdir))
    )
