"""Releases for tests: a manifest, its contents, and how they are put into a store."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.core.wire.boot import HostCode
from runner.core.wire.codec import Frame
from runner.core.wire.files import File, Folder, Manifest, Symlink, release_hash
from runner.core.wire.paths import CODE_FOLDER, release_folder
from runner.host.agent import push
from runner.host.agent.server import AgentContext
from runner.host.storage.release_store import find_damage
from runner.host.storage.release_writer import ReleaseWriter


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


def begun(workdir: Path, made: Made) -> ReleaseWriter:
    assembly = ReleaseWriter(str(workdir), made.manifest.encode())
    assembly.begin()
    return assembly


def stream(assembly: ReleaseWriter, made: Made) -> bytes:
    return b"".join(made.contents[file.digest] for file in assembly.missing)


def store(workdir: Path, made: Made) -> list[str]:
    assembly = begun(workdir, made)
    came = [file.path for file in assembly.missing]
    assembly.write(stream(assembly, made))
    assembly.finish()
    return came


def is_intact(workdir: str, name: str) -> bool:
    return find_damage(workdir, name, by_content=True) == ""


def write_into(path: Path, data: bytes) -> None:
    path.chmod(0o600)
    path.write_bytes(data)
    path.chmod(0o444)


def left_in(workdir: Path) -> list[str]:
    """What lies in the store of releases, unfinished ones too."""
    return sorted(path.name for path in (workdir / "releases").iterdir())


class PushTaker:
    """The host's end of a push; `reply` takes its answers.

    As in an agent, the manifest is answered in a thread, which waits for the pieces.
    """

    def __init__(self, workdir: Path, reply: Callable[[str, dict[str, Any], bytes], None]) -> None:
        self._reply = reply
        self._moved = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        context = AgentContext(self._on_reply, repr, HostCode({}), followed_workdir=str(workdir))
        self.handler = push.Handler(context)

    def _on_reply(self, kind: str, data: dict[str, Any], payload: bytes = b"") -> None:
        self._reply(kind, data, payload)
        self._moved.set()

    def _answer(self, frame: Frame) -> None:
        try:
            self.handler.on_manifest(frame)
        except Exception as error:  # noqa: BLE001 (`take` raises it)
            self._error = error
        self._moved.set()

    def take(self, frame: Frame) -> None:
        """Return once the frame is taken, or raise what came of it."""
        self._moved.clear()
        if frame.kind == "manifest":
            self._thread = threading.Thread(target=self._answer, args=(frame,), daemon=True)
            self._thread.start()
        else:
            getattr(self.handler, f"on_{frame.kind}")(frame)
        thread = self._thread
        if thread is not None and (frame.kind == "manifest" or thread.is_alive()):
            assert self._moved.wait(60)
            if frame.kind == "finish" or self._error is not None:
                thread.join()
        if self._error is not None:
            error = self._error
            self._error = None
            raise error
