"""Download of a run from all of its hosts at once: records, logs and outputs.

After an interruption the next pull continues where it ended and fetches nothing twice. Requests
are sent ahead, enough to fill a connection and bounded in bytes.
"""

from __future__ import annotations

import contextlib
import errno
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from runner.control.record.destination import DownloadFolder, FileDownload, plan_downloads
from runner.control.rpc.session import HostSession, Inbox
from runner.control.rpc.wait import WaitLoop
from runner.core.errors import Problem
from runner.core.results import PullResult
from runner.core.wire.codec import Frame, decompress, parse_json
from runner.core.wire.files import CHUNK, FILE_KINDS, MAX_FILES, OUTPUT, RemoteFile
from runner.core.wire.text import printable

WINDOW = 8 << 20
MAX_REQUESTS = 256
"""Bytes, and chunks, requested from one host and not received yet."""

ALL_WINDOWS = 256 << 20
MIN_CHUNKS = 4
"""The same bytes for all hosts together, and the least number of chunks for each."""

MAX_TRIES = 3
"""How often a file is begun that changes during its download."""

MAX_LIST = 64 << 20
REPORT_S = 0.2
MAX_PROBLEMS = 20
FATAL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE)
RETRY_HINT = "pull again: what came is kept, and it continues from there"


def pull(
    sessions: Mapping[str, HostSession],
    inbox: Inbox,
    run_id: str,
    folder: Path,
    *,
    lost_s: float,
    show: Callable[[str, str], None],
    kinds: Collection[str] = FILE_KINDS,
    limit_s: float = math.inf,
    patience_s: float = math.inf,
) -> dict[str, PullResult]:
    """Download what the hosts have of a run; return the result of each node, with its problems.

    A problem of one host does not affect the others. `folder`, the record on this machine, is
    created if it does not exist; `kinds` are of `FILE_KINDS`. What is not here after `limit_s` is
    left to the next pull, and so is the rest of a host that sent nothing for `patience_s`.

    Raises:
        NotReady: The folder cannot be written to, or another process does so.
        Interrupted: By a signal; the next pull continues from there.
    """
    window = max(MIN_CHUNKS * CHUNK, min(WINDOW, ALL_WINDOWS // max(1, len(sessions))))
    with contextlib.closing(DownloadFolder(folder)) as destination:
        downloads = {
            name: HostDownload(session, run_id, destination, show, window)
            for name, session in sessions.items()
        }
        loop = PullLoop(sessions, inbox, lost_s, show)
        loop.run(downloads, kinds, limit_s, patience_s)
        for name, download in downloads.items():
            if download.result.is_complete and OUTPUT in kinds:
                destination.remove_partials(name)
        return {name: download.result for name, download in downloads.items()}


class PullLoop(WaitLoop):
    """The wait for every host's files."""

    def run(
        self,
        downloads: Mapping[str, HostDownload],
        kinds: Collection[str],
        limit_s: float,
        patience_s: float,
    ) -> None:
        """Return when all downloads are done."""
        self._downloads = downloads
        for download in downloads.values():
            download.start(kinds)
        self._deadline = time.monotonic() + limit_s
        self._patience_s = patience_s
        self.wait()

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


@dataclass(frozen=True)
class Chunk:
    """One chunk that was requested."""

    download: FileDownload
    offset: int
    size: int


class HostDownload:
    """The download from one host; its state is large on purpose: requests, writes, progress."""

    def __init__(
        self,
        session: HostSession,
        run_id: str,
        destination: DownloadFolder,
        show: Callable[[str, str], None],
        window: int,
    ) -> None:
        self.result = PullResult()
        self.is_done = False
        self._session = session
        self._name = session.node.name
        self._run_ref = {"run_id": run_id, "node": self._name}
        self._destination = destination
        self._show = show
        self._window = window
        self._list_request_id = 0
        self._remote_files: list[RemoteFile] = []
        self._downloads: deque[FileDownload] = deque()
        self._chunks: Iterator[Chunk] = iter(())
        self._requests: dict[int, Chunk] = {}
        self._bytes_total = 0
        self._bytes_done = 0
        self._next_report = 0.0

    def start(self, kinds: Collection[str]) -> None:
        """Request the inventory."""
        self._show(self._name, "listing")
        request = {**self._run_ref, "kinds": list(kinds)}
        self._list_request_id = self._session.request("inventory", request)

    def fail(self, message: str) -> None:
        """Give up on the host."""
        self.is_done = True
        self.result.failed_count += 1
        self.result.problems.append(Problem(self._name, message, RETRY_HINT))
        self._show(self._name, "failed")

    def on_frame(self, frame: Frame) -> bool:
        """Take a frame; return whether it was a reply with something new."""
        request_id = frame.data.get("id")
        if request_id in self._requests and frame.kind in ("fetched", "refused"):
            chunk = self._requests.pop(request_id)
            with self._guard(chunk.download):
                self._store_chunk(chunk, frame)
            self._request_more()
        elif request_id != self._list_request_id:
            return False
        elif frame.kind == "refused":
            self.fail(f"could not say what it has: {frame.data['reason']}")
        elif frame.kind == "inventory_page":
            try:
                rows = parse_json(decompress(frame.payload, MAX_LIST))
                if not isinstance(rows, list) or len(self._remote_files) + len(rows) > MAX_FILES:
                    raise ValueError("more files than a host may list")
                self._remote_files += map(RemoteFile.from_row, rows)
            except ValueError as error:
                self.fail(f"unexpected reply: {error}")
                return True
            return bool(rows)
        elif frame.kind == "inventory_end":
            self._on_listed(frame)
        return True

    def _on_listed(self, frame: Frame) -> None:
        """Plan the downloads."""
        self.result.omitted_count = frame.data["omitted_count"]
        self.result.notes = [f"{printable(path)}: {why}" for path, why in frame.data["skipped"]]
        more = frame.data["skip_count"] - len(self.result.notes)
        if more > 0:
            self.result.notes.append(f"and {more} more")
        self._downloads.extend(plan_downloads(self._destination, self._name, self._remote_files))
        self.result.output_count = sum(file.kind == OUTPUT for file in self._remote_files)
        self._remote_files = []
        self._bytes_total = sum(download.source.size for download in self._downloads)
        self._request_more()

    def _store_chunk(self, chunk: Chunk, frame: Frame) -> None:
        """Write one chunk; raise ValueError if it is not what was requested, or OSError."""
        download = chunk.download
        if download.abandoned:
            return
        if frame.kind == "refused":
            raise ValueError(frame.data["reason"])
        size = frame.data["size"]
        mtime_ns = frame.data["mtime_ns"]
        if download.has_changed(size, mtime_ns):
            download.abandoned = True
            renewed = download.renewed(size, mtime_ns)
            if renewed.tries >= MAX_TRIES:
                raise ValueError("keeps changing during the download")
            self._bytes_done -= download.position
            self._bytes_total += size - download.source.size
            self._downloads.appendleft(renewed)
            return
        data = frame.payload
        if frame.data["compressed"]:
            data = decompress(data, chunk.size)
        if len(data) != chunk.size or chunk.offset != download.position:
            raise ValueError("was received incomplete")
        download.write(data)
        self._bytes_done += len(data)
        self.result.fetched_bytes += len(data)
        if download.position == download.source.size:
            self._finish(download)

    def _finish(self, download: FileDownload) -> None:
        download.finish()
        self.result.new_count += 1
        self.result.folders.add("/".join(download.dest.split("/")[:2]))  # such as outputs/NODE

    def _request_more(self) -> None:
        """Request as many chunks as may be under way; finish if none are left."""
        while not self.is_done and len(self._requests) < MAX_REQUESTS:
            if sum(chunk.size for chunk in self._requests.values()) >= self._window:
                break
            if chunk := next(self._chunks, None):
                source = chunk.download.source
                request = {
                    **self._run_ref,
                    "file_kind": source.kind,
                    "path": source.path,
                    "offset": chunk.offset,
                    "n": chunk.size,
                    "compressed": self._session.node.transport != "local",
                }
                self._requests[self._session.request("fetch", request)] = chunk
            elif self._downloads:
                self._chunks = self._start_download(self._downloads.popleft())
            else:
                break
        now = time.monotonic()
        if not self.is_done and not self._requests:
            self.is_done = True
            self.result.is_finished = True
            self._show(self._name, "done" if self.result.is_complete else "in part")
        elif not self.is_done and now >= self._next_report:
            self._next_report = now + REPORT_S
            self._show(self._name, f"{round(100 * self._bytes_done / (self._bytes_total or 1))} %")

    def _start_download(self, download: FileDownload) -> Iterator[Chunk]:
        """Begin a file; yield the chunks to request, until it is given up."""
        download.tries += 1
        size = download.source.size
        with self._guard(download):
            start = download.resume_offset()
            download.position = size if start is None else start
            if start is None:
                self.result.existing_count += 1
            elif start == size:
                self._finish(download)
        self._bytes_done += download.position
        for offset in range(download.position, size, CHUNK):
            if download.abandoned:
                return
            yield Chunk(download, offset, min(CHUNK, size - offset))

    @contextlib.contextmanager
    def _guard(self, download: FileDownload) -> Iterator[None]:
        """On an error give up the file, or all of them if the disk is full."""
        name = printable(download.dest)
        try:
            yield
            return
        except OSError as error:
            download.abandoned = True
            reason = error.strerror or str(error)
            if error.errno in FATAL_ERRNOS:
                self.fail(f"cannot write {name} here: {reason}")
                return
            problem = f"{name}: cannot be written here: {reason}"
        except ValueError as error:
            problem = f"{name}: {error}"
        download.abandoned = True
        self.result.failed_count += 1
        if len(self.result.problems) < MAX_PROBLEMS:
            self.result.problems.append(Problem(self._name, problem, RETRY_HINT))
