"""Releases for tests: a manifest, its contents, and how they are put into a pool."""

from __future__ import annotations

import hashlib
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.control.code.pool import Release
from runner.core.wire.codec import Frame
from runner.core.wire.files import Entry, Manifest, release_hash
from runner.core.wire.paths import content_file, release_file
from runner.host.agent import launch
from runner.host.agent.server import Agent
from runner.host.storage.pool import Upload


@dataclass(frozen=True)
class Made:
    manifest: Manifest
    contents: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return release_hash(self.manifest.encode())

    def manifest_path(self, workdir: Path) -> Path:
        return Path(release_file(str(workdir), self.name))

    def content_path(self, workdir: Path, path: str) -> Path:
        """Where the content of its file at `path` is in a pool."""
        (file,) = (file for file in self.manifest.files if file.path == path)
        return Path(content_file(str(workdir), file.content))


class InMemory(Release):
    """It counts how often a file is read."""

    def __init__(self, made: Made) -> None:
        super().__init__(made.manifest, made.manifest.encode())
        self._made = made
        self.reads: Counter[str] = Counter()

    def read(self, file: Entry) -> Iterator[bytes]:
        self.reads[file.path] += 1
        data = self._made.contents[file.content]
        for at in range(0, len(data), 10):
            yield data[at : at + 10]


def release(
    files: Mapping[str, bytes],
    *,
    modes: Mapping[str, int] | None = None,
    folders: Mapping[str, int] | None = None,
    links: Mapping[str, str] | None = None,
) -> Made:
    """A release with those files; the folders above them need not be named."""
    above = {str(parent) for path in files for parent in Path(path).parents} - {"."}
    all_folders = {**dict.fromkeys(above, 0o755), **(folders or {})}
    digests = {path: hashlib.sha256(data).hexdigest() for path, data in files.items()}
    entries = [Entry(path, stat.S_IFDIR | mode) for path, mode in all_folders.items()]
    entries += [Entry(path, stat.S_IFLNK | 0o777, 0, to) for path, to in (links or {}).items()]
    for path, data in files.items():
        mode = stat.S_IFREG | (modes or {}).get(path, 0o644)
        entries.append(Entry(path, mode, len(data), digests[path]))
    entries.sort(key=lambda entry: entry.path)
    return Made(Manifest(tuple(entries)), {digests[path]: files[path] for path in files})


def begun(workdir: Path, made: Made) -> Upload:
    return Upload(str(workdir), made.manifest.encode())


def stream(upload: Upload, made: Made) -> bytes:
    return b"".join(made.contents[file.content] for file in upload.missing)


def store(workdir: Path, made: Made) -> list[str]:
    """Store a release; return the paths of the files that were missing."""
    upload = begun(workdir, made)
    upload.write(stream(upload, made))
    upload.finish()
    upload.close()
    return [file.path for file in upload.missing]


def is_intact(workdir: Path, made: Made) -> bool:
    """Whether the manifest and every byte are there."""
    try:
        found = {digest: Path(content_file(str(workdir), digest)) for digest in made.contents}
        is_whole = {digest: path.read_bytes() for digest, path in found.items()} == made.contents
        return is_whole and made.manifest_path(workdir).read_bytes() == made.manifest.encode()
    except OSError:
        return False


def left_in(workdir: Path, folder: str = "releases") -> list[str]:
    """What lies in the folder of releases, or of contents, unfinished ones too."""
    return sorted(path.name for path in (workdir / folder).iterdir())


class AgentInMemory(Agent):
    """An agent without a connection; `take_reply` takes its answers."""

    def __init__(
        self, workdir: Path, take_reply: Callable[[str, dict[str, Any], bytes], None]
    ) -> None:
        super().__init__(-1, -1, {}, b"", "")
        self._workdir = str(workdir)
        self._take_reply = take_reply

    @property
    def workdir(self) -> str:
        return self._workdir

    def reply(self, kind: str, data: dict[str, Any], payload: bytes = b"") -> None:
        self._take_reply(kind, data, payload)


class PushTaker:
    """The host's end of a push; `reply` takes its answers.

    As in an agent, the manifest is answered in a thread, which waits for the pieces.
    """

    def __init__(self, workdir: Path, reply: Callable[[str, dict[str, Any], bytes], None]) -> None:
        self._reply = reply
        self._moved = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.handler = launch.Handler(AgentInMemory(workdir, self._on_reply))

    def _on_reply(self, kind: str, data: dict[str, Any], payload: bytes) -> None:
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
