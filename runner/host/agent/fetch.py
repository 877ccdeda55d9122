"""Fetch requests: the inventory of a run's files, and chunks of them.

Symbolic links are listed and never followed, so that nothing outside the run's folder is read.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import zlib
from typing import Any, Callable, Collection, List, Optional, Tuple

from runner.core.wire import files
from runner.core.wire.codec import Frame
from runner.core.wire.files import CHUNK, MAX_FILES, RemoteFile
from runner.core.wire.paths import RunPaths
from runner.host.agent.server import RequestHandler, error_text
from runner.host.process.jobs import checkpoint

MAX_PATH_BYTES = 32 << 20  # of all paths of one inventory
FILES_PER_PAGE = 2000
MAX_SKIPS_REPORTED = 20
COMPRESSION_SAMPLE = 16 << 10
MAX_COMPRESSED_RATIO = 0.9  # a chunk is sent compressed if its beginning shrinks below this
FOLDER_FLAGS = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Handler(RequestHandler):
    """Lists the files of a run, and sends them."""

    def on_inventory(self, frame: Frame) -> None:
        """List the files of a run, in pages."""
        folder = self.context.run_folder(frame)
        if not os.path.isdir(folder.root):
            raise ValueError(f"there is no run {frame.data['run_id']} ({folder.root})")
        inventory = Inventory(folder, frame.data.get("kinds", files.FILE_KINDS))
        inventory.find(lambda: self._send_page(frame, inventory))
        self._send_page(frame, inventory)
        self.context.answer(
            frame,
            "inventory_end",
            omitted_count=inventory.omitted_count,
            skip_count=inventory.skip_count,
            skipped=[list(entry) for entry in inventory.skipped],
        )

    def _send_page(self, frame: Frame, inventory: Inventory) -> None:
        rows = json.dumps([file.to_row() for file in inventory.files], separators=(",", ":"))
        inventory.files.clear()
        self.context.answer(frame, "inventory_page", zlib.compress(rows.encode("ascii"), 1))

    def on_fetch(self, frame: Frame) -> None:
        """Send files from an offset to a size, one after the other; say of each where it ends.

        One that is another by then, by its size or time, ends at once.
        """
        folder = self.context.run_folder(frame)
        output_folder, _ = working_folder(folder)
        for kind, path, offset, size, mtime_ns in frame.data["files"]:
            try:
                files.validate(kind, path)
                base = output_folder if kind == files.OUTPUT else folder.root
                if not base:
                    raise ValueError("its working folder is not on record")
                descriptor = open_below(base, path)
                try:
                    self._send_file(frame, descriptor, path, offset, size, mtime_ns)
                finally:
                    os.close(descriptor)
            except (OSError, ValueError) as error:
                reason = error_text(error)
                self.context.answer(frame, "data", file=path, offset=0, error=reason, eof=True)
        self.context.answer(frame, "streamed")

    def _send_file(
        self,
        frame: Frame,
        descriptor: int,
        path: str,
        offset: int,
        size: int,
        mtime_ns: Optional[int],
    ) -> None:
        may_compress = bool(frame.data.get("compressed"))
        is_last = False
        while not is_last:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ValueError("it is no longer a file")
            has_changed = mtime_ns is not None and (status.st_size, status.st_mtime_ns) != (
                size,
                mtime_ns,
            )
            room = 0 if has_changed else self.context.credit.take(min(CHUNK, size - offset))
            sent = 0
            try:
                data = os.pread(descriptor, room, offset)
                is_last = has_changed or offset + len(data) >= size or not data
                compressed = may_compress and _shrinks(data)
                payload = zlib.compress(data, 1) if compressed else data
                self.context.answer(
                    frame,
                    "data",
                    payload,
                    file=path,
                    offset=offset,
                    eof=is_last,
                    size=status.st_size,
                    mtime_ns=status.st_mtime_ns,
                    compressed=compressed,
                )
                sent = len(payload)
            finally:
                self.context.credit.grant(room - sent)
            offset += len(data)


def _shrinks(data: bytes) -> bool:
    sample = data[:COMPRESSION_SAMPLE]
    return len(zlib.compress(sample, 1)) < MAX_COMPRESSED_RATIO * len(sample)


class Inventory:
    """The files of one run on this host."""

    def __init__(self, folder: RunPaths, kinds: Collection[str]) -> None:
        self.files: List[RemoteFile] = []  # found and not sent yet
        self.omitted_count = self.skip_count = 0  # files beyond the limits; entries left out
        self.skipped: List[Tuple[str, str]] = []  # path and reason of the first of them
        self._folder = folder
        self._kinds = kinds
        self._file_count = self._path_bytes = 0
        self._checked_out_ns = 0  # what has not changed since is no output, but code
        with contextlib.suppress(OSError):
            self._checked_out_ns = os.stat(folder.checked_out).st_ctime_ns

    def find(self, on_page: Callable[[], object]) -> None:
        """Find the files; `on_page` takes those that make a page, which may be cleared."""
        self._on_page = on_page
        root = self._folder.root
        if files.RECORD in self._kinds:
            for name in files.RECORD_FILES:
                self._add_if_file(files.RECORD, root, name)
        if {*self._kinds} & {files.LOG, files.SAMPLES}:
            self._find_in_attempts(root)
        if files.OUTPUT in self._kinds:
            base, patterns = working_folder(self._folder)
            if base and patterns:
                self._walk(base, files.compile_globs(patterns))

    def _find_in_attempts(self, root: str) -> None:
        paths = {
            files.LOG: files.LOG_PATH,
            files.SAMPLES: files.SAMPLES_PATH,
        }
        wanted = {kind: pattern for kind, pattern in paths.items() if kind in self._kinds}
        for attempt in sorted(os.listdir(root)):
            folder = os.path.join(root, attempt)
            is_attempt = attempt.startswith("attempt_") and os.path.isdir(folder)
            for name in sorted(os.listdir(folder)) if is_attempt else ():
                path = f"{attempt}/{name}"
                for kind, pattern in wanted.items():
                    if pattern.fullmatch(path):
                        self._add_if_file(kind, root, path)

    def _add_if_file(self, kind: str, root: str, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            status = os.lstat(os.path.join(root, path))
            if stat.S_ISREG(status.st_mode):
                self._add(kind, path, status, None)

    def _walk(self, base: str, matching: files.GlobState) -> None:
        """Walk through a folder, as deep as the patterns lead."""
        pending = [("", matching)]
        while pending:
            path, matching = pending.pop()
            checkpoint()
            try:
                descriptor = open_below(base, path or ".", os.O_RDONLY | FOLDER_FLAGS)
            except OSError as error:
                if error.errno != errno.ENOENT:  # removed, or never made
                    self._skip(path or ".", error_text(error))
                continue
            subfolders: List[Tuple[str, files.GlobState]] = []
            try:
                with os.scandir(descriptor) as entries:
                    ordered = sorted(entries, key=lambda entry: entry.name)
                for entry in ordered:
                    child = os.path.join(path, entry.name)
                    below = files.step_globs(matching, entry.name)
                    if below and entry.is_dir(follow_symlinks=False):
                        subfolders.append((child, below))
                    elif below:
                        self._add_entry(descriptor, child, entry, below)
            except OSError as error:
                self._skip(path or ".", error_text(error))
            finally:
                os.close(descriptor)
            pending += reversed(subfolders)

    def _add_entry(self, dir_fd: int, path: str, entry: Any, matching: files.GlobState) -> None:
        try:
            status = entry.stat(follow_symlinks=False)
            is_link = stat.S_ISLNK(status.st_mode)
            target = os.readlink(entry.name, dir_fd=dir_fd) if is_link else None
        except FileNotFoundError:  # removed in between
            return
        if () not in matching:
            if is_link and files.matches_below(matching):
                self._skip(path, "is a symbolic link, which is not followed")
        elif status.st_ctime_ns <= self._checked_out_ns:
            return
        elif is_link or stat.S_ISREG(status.st_mode):
            self._add(files.OUTPUT, path, status, target)
        else:
            self._skip(path, "is neither a file nor a link")

    def _add(self, kind: str, path: str, status: os.stat_result, target: Optional[str]) -> None:
        checkpoint()
        self._file_count += 1
        self._path_bytes += len(path) + len(target or "")
        if self._file_count > MAX_FILES or self._path_bytes > MAX_PATH_BYTES:
            self.omitted_count += 1
            return
        size = 0 if target is not None else status.st_size
        mode = stat.S_IMODE(status.st_mode) & 0o777
        self.files.append(RemoteFile(kind, path, size, status.st_mtime_ns, mode, target))
        if len(self.files) >= FILES_PER_PAGE:
            self._on_page()

    def _skip(self, path: str, reason: str) -> None:
        self.skip_count += 1
        if len(self.skipped) < MAX_SKIPS_REPORTED:
            self.skipped.append((path, reason))


def working_folder(folder: RunPaths) -> Tuple[str, Tuple[str, ...]]:
    """Return the working folder of a run's ranks ("" if unknown), and the patterns to fetch."""
    try:
        with open(folder.order, encoding="utf-8") as file:
            cwd = json.load(file)["cwd"]
        with open(folder.plan, encoding="utf-8") as file:
            patterns = json.load(file).get("outputs", ())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "", ()
    valid = (each for each in patterns if isinstance(each, str) and not files.glob_problem(each))
    return str(cwd), tuple(valid)


def open_below(base: str, path: str, flags: int = FILE_FLAGS) -> int:
    """Open a file below a folder without following links.

    Raises:
        OSError: It does not exist, or a part of the path is a link.
    """
    dir_fd = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *parents, name = path.split("/")
        for folder in parents:
            child_fd = os.open(folder, os.O_PATH | FOLDER_FLAGS, dir_fd=dir_fd)
            os.close(dir_fd)
            dir_fd = child_fd
        return os.open(name, flags, dir_fd=dir_fd)
    finally:
        os.close(dir_fd)
