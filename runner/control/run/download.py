"""Download of a run from all of its hosts at once: records, logs and outputs.

No pull fetches anything twice: a file that only grows continues where the local copy ends; any
other is written to a partial file, named after its version, and renamed when it is complete.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import math
import os
import shutil
import stat
import time
from collections import deque
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from runner.control.record.launch_record import HOSTS_FOLDER
from runner.control.record.run_store import try_lock_folder
from runner.control.rpc.session import HostSession
from runner.control.rpc.wait import WaitLoop
from runner.control.run.hosts import HostPool
from runner.core.errors import NotReady, Problem, reason_of
from runner.core.results import PullResult
from runner.core.wire.codec import Frame, FrameError, decompress, parse_json
from runner.core.wire.files import (
    APPEND_ONLY,
    FILE_KINDS,
    LOG,
    MAX_LIST,
    OUTPUT,
    RemoteFile,
    parse_log_path,
)
from runner.core.wire.paths import local_name
from runner.core.wire.text import printable

WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
PARTIAL_FOLDER = ".partial"
REPORT_S = 0.2
MAX_PROBLEMS = 20
FATAL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE)
RETRY_HINT = "pull again: what came is kept, and it continues from there"


def pull(
    pool: HostPool,
    run_id: str,
    folder: Path,
    kinds: Collection[str] = FILE_KINDS,
    *,
    patterns: Sequence[str] = (),
    nodes: Container[str] | None = None,
    limit_s: float = math.inf,
    patience_s: float = math.inf,
) -> dict[str, PullResult]:
    """Download what hosts have of a run; return the result of each node, with its problems.

    All that are connected are asked, or those of `nodes` among them. `folder` is the record here,
    which is made if it does not exist; `patterns` name outputs in place of those of the task. What
    is not here after `limit_s` is left to the next pull, and so is the rest of a host that sent
    nothing for `patience_s`.
    Raise NotReady if the folder cannot be written to, or another process does so.
    """
    pool.console.phase("fetching")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock_fd = try_lock_folder(folder)
    except OSError as error:
        raise NotReady([Problem("", f"cannot write in {folder}: {error.strerror}")]) from error
    if lock_fd is None:
        message = (
            f"{folder} is being written by another pull, or by a process that follows that run"
        )
        raise NotReady([Problem("", message, "wait for its end")])
    try:
        downloads = {
            name: HostDownload(session, run_id, folder, pool.console.node_status)
            for name, session in pool.sessions.items()
            if not session.closed and (nodes is None or name in nodes)
        }
        for download in downloads.values():
            download.start({"kinds": [*kinds], "patterns": [*patterns]})
        PullLoop(pool, downloads, limit_s, patience_s).wait()
        for name, download in downloads.items():
            if download.result.is_complete and OUTPUT in kinds:
                shutil.rmtree(folder / PARTIAL_FOLDER / name, ignore_errors=True)
        with contextlib.suppress(OSError):
            (folder / PARTIAL_FOLDER).rmdir()
    finally:
        os.close(lock_fd)
    return {name: download.result for name, download in downloads.items()}


class PullLoop(WaitLoop):
    def __init__(
        self,
        pool: HostPool,
        downloads: Mapping[str, HostDownload],
        limit_s: float,
        patience_s: float,
    ) -> None:
        super().__init__(pool.sessions, pool.inbox, pool.spec.lost_s, pool.console.node_status)
        self._downloads = downloads
        self._deadline = time.monotonic() + limit_s
        self._patience_s = patience_s

    def _pending(self) -> list[str]:
        return [name for name, download in self._downloads.items() if not download.is_done]

    def _on_frame(self, name: str, frame: Frame) -> bool:
        return self._downloads[name].on_frame(frame)

    def _deadline_of(self, name: str) -> float:
        worked_at = self._worked_at.get(name, math.inf)
        return min(super()._deadline_of(name), worked_at + self._patience_s)

    def _on_late(self, name: str) -> None:
        if time.monotonic() < self._deadline:
            self.sessions[name].close()  # nobody is to wait for it again
        self._downloads[name].fail("did not send all in time; its disk may hang")

    def _on_lost(self, name: str, reason: str) -> None:
        self._downloads[name].fail(reason)


@dataclass
class Incoming:
    source: RemoteFile
    dest: str  # below the run's folder
    path: Path  # where it is written
    position: int  # bytes
    is_partial: bool  # else it only grows; a partial one gets its name when it is complete
    is_given_up: bool = False


class HostDownload:
    def __init__(
        self, session: HostSession, run_id: str, folder: Path, show: Callable[[str, str], None]
    ) -> None:
        self.result = PullResult()
        self.is_done = False
        self._session = session
        self._name = session.node.name
        self._run_ref = {"run_id": run_id, "node": self._name}
        self._folder = folder
        self._show = show
        self._request_id = 0  # of the last request
        self._replies: tuple[str, ...] = ("inventory",)  # to that
        self._incoming: deque[Incoming] = deque()  # in the order of the stream
        self._bytes_total = 0
        self._bytes_done = 0
        self._next_report = 0.0

    def start(self, wanted: Mapping[str, list[str]]) -> None:
        self._show(self._name, "listing")
        self._request_id = self._session.request("inventory", {**self._run_ref, **wanted})

    def fail(self, message: str) -> None:
        self.is_done = True
        self.result.failed_count += 1
        self.result.problems.append(Problem(self._name, message, RETRY_HINT))
        self._show(self._name, "failed")

    def on_frame(self, frame: Frame) -> bool:
        """Take a frame; return whether it was a reply with something new."""
        if frame.data.get("id") != self._request_id:
            return False
        if frame.kind == "refused":
            aim = "say what it has" if "inventory" in self._replies else "send what was asked for"
            self.fail(f"could not {aim}: {frame.data['reason']}")
        elif frame.kind not in self._replies:
            return False
        elif frame.kind == "inventory":
            try:
                rows = parse_json(decompress(frame.payload, MAX_LIST))
                files = [RemoteFile.from_row(row) for row in rows]
            except (ValueError, TypeError) as error:
                self.fail(f"unexpected reply: {error}")
                return True
            self.result.omitted_count = frame.data["omitted_count"]
            self.result.notes = [printable(note) for note in frame.data["skipped"]]
            self._request(files)
        elif frame.kind == "data":
            self._take(frame)
            return bool(frame.payload or frame.data["eof"])
        elif self._incoming:
            self.fail("did not send all that was asked for")
        else:
            self._finish()
        return True

    def _request(self, files: Sequence[RemoteFile]) -> None:
        """Have what is not here streamed, outputs at the end."""
        self.result.output_count = sum(file.kind == OUTPUT for file in files)
        for source in sorted(files, key=lambda file: file.kind == OUTPUT):
            dest = f"{HOSTS_FOLDER}/{self._name}/{source.path}"
            if source.kind == OUTPUT:
                dest = f"outputs/{self._name}/{source.path}"
            elif source.kind == LOG:
                dest = f"logs/{self._name}/{local_name(*parse_log_path(source.path))}"
            if source.kind == LOG and not source.size:
                continue
            try:
                if incoming := self._lacking(source, dest):
                    self._incoming.append(incoming)
                    self._bytes_total += source.size
                    self._bytes_done += incoming.position
            except (OSError, ValueError) as error:
                self._give_up(dest, error)
            if self.is_done:
                return
        if not self._incoming:
            self._finish()
            return
        rows = []
        for each in self._incoming:
            source = each.source
            mtime_ns = source.mtime_ns if each.is_partial else None
            rows.append([source.kind, source.path, each.position, source.size, mtime_ns])
        self._replies = ("data", "streamed")
        self._request_id = self._session.request("fetch", {**self._run_ref, "files": rows})

    def _lacking(self, source: RemoteFile, dest: str) -> Incoming | None:
        """Return what of a file is not here, None if all is.

        Raise ValueError if something is in the way, or OSError.
        """
        path = self._path(dest)
        status = _lstat(path)
        grows = source.kind == LOG or (source.kind != OUTPUT and source.path in APPEND_ONLY)
        if status and not stat.S_ISREG(status.st_mode):
            raise ValueError("something other than a file is in the way")
        version = f"{dest} {source.size} {source.mtime_ns}"
        digest = hashlib.sha256(version.encode("utf-8", "surrogateescape")).hexdigest()
        partial = self._path(f"{PARTIAL_FOLDER}/{self._name}/{digest}")
        local_size = status.st_size if status else 0
        if grows and local_size > source.size:
            sizes = f"({local_size} bytes) than on the host ({source.size})"
            raise ValueError(f"is longer here {sizes}: another file")
        is_same = grows or (status and status.st_mtime_ns == source.mtime_ns)
        if is_same and local_size == source.size:
            self.result.existing_count += 1
            return None
        if grows:
            return Incoming(source, dest, path, local_size, is_partial=False)
        begun = _lstat(partial)
        offset = begun.st_size if begun and begun.st_size <= source.size else 0
        return Incoming(source, dest, partial, offset, is_partial=True)

    def _path(self, name: str) -> Path:
        """Return the path of a file below the run's folder, whose own folders are made.

        Raise ValueError if one of them is a link, which may lead out, or a file.
        """
        folder = self._folder
        for part in name.split("/")[:-1]:
            folder /= part
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            if not stat.S_ISDIR(folder.lstat().st_mode):
                raise ValueError(f"{folder.relative_to(self._folder)} is in the way")
        return self._folder / name

    def _take(self, frame: Frame) -> None:
        incoming = self._incoming[0] if self._incoming else None
        if incoming is None or frame.data["file"] != incoming.source.path:
            raise FrameError("bytes of a file that nobody asked for")
        if not incoming.is_given_up:
            try:
                self._write(incoming, frame)
            except (OSError, ValueError) as error:
                incoming.is_given_up = True
                self._give_up(incoming.dest, error)
        if frame.data["eof"]:
            self._incoming.popleft()
        now = time.monotonic()
        if not self.is_done and now >= self._next_report:
            self._next_report = now + REPORT_S
            self._show(self._name, f"{round(100 * self._bytes_done / (self._bytes_total or 1))} %")

    def _write(self, incoming: Incoming, frame: Frame) -> None:
        """Write what came; raise ValueError if it is not what was requested, or OSError."""
        if error := frame.data["error"]:
            raise ValueError(error)
        data = frame.payload
        source = incoming.source
        end = incoming.position + len(data)
        is_cut = frame.data["eof"] and end != source.size
        if frame.data["offset"] != incoming.position or end > source.size or is_cut:
            raise ValueError("was received incomplete")
        with os.fdopen(os.open(incoming.path, WRITE_FLAGS, 0o600), "wb") as file:
            file.seek(incoming.position)
            file.write(data)
            if end == source.size and incoming.is_partial:
                file.truncate()
                file.flush()
                os.fchmod(file.fileno(), source.mode)
                os.utime(file.fileno(), ns=(source.mtime_ns, source.mtime_ns))
                # Else a power cut may leave its size and time without its data.
                os.fsync(file.fileno())
        incoming.position = end
        self._bytes_done += len(data)
        self.result.fetched_bytes += len(data)
        if frame.data["eof"]:
            if incoming.is_partial:
                incoming.path.replace(self._folder / incoming.dest)
            self.result.new_count += 1
            self.result.folders.add("/".join(incoming.dest.split("/")[:2]))  # as outputs/NODE

    def _finish(self) -> None:
        self.is_done = True
        self.result.is_finished = True
        self._show(self._name, "done" if self.result.is_complete else "in part")

    def _give_up(self, dest: str, error: OSError | ValueError) -> None:
        """Note why a file is not brought; where the disk is full, nothing else is either."""
        problem = str(error)
        if isinstance(error, OSError):
            problem = f"cannot be written here: {reason_of(error)}"
            if error.errno in FATAL_ERRNOS:
                self.fail(f"{printable(dest)} {problem}")
                return
        self.result.failed_count += 1
        if len(self.result.problems) < MAX_PROBLEMS:
            message = f"{printable(dest)}: {problem}"
            self.result.problems.append(Problem(self._name, message, RETRY_HINT))


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None
