"""Fetch requests: the inventory of a run's files, and chunks of them.

Symbolic links are listed and never followed, so that nothing outside the run's folder is read.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import stat
import zlib
from collections import deque
from typing import Any, Collection, Deque, Dict, List, Optional, Tuple

from runner.core.wire import files
from runner.core.wire.codec import Frame
from runner.core.wire.files import MAX_FILES, RemoteFile
from runner.core.wire.paths import RunPaths
from runner.host.agent.server import AgentContext, RequestHandler, error_text
from runner.host.process.event_loop import Steps

MAX_PATH_BYTES = 32 << 20  # of all paths of one inventory
FILES_PER_PAGE = 2000
MAX_SKIPS_REPORTED = 20
ENTRIES_PER_STEP = 512  # of a folder
COMPRESSION_SAMPLE = 16 << 10
MAX_COMPRESSED_RATIO = 0.9  # a chunk is sent compressed if its beginning shrinks below this
FOLDER_FLAGS = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Handler(RequestHandler):
    """Lists the files of a run, and sends chunks in the order of the requests."""

    def __init__(self, context: AgentContext) -> None:
        super().__init__(context)
        self._pending: Deque[Frame] = deque()
        self._sending = False
        self._output_folders: Dict[str, str] = {}

    def on_inventory(self, frame: Frame) -> Steps:
        """List the files of a run, in pages."""
        folder = self.context.run_folder(frame)
        if not os.path.isdir(folder.root):
            raise ValueError(f"there is no run {frame.data['run_id']} ({folder.root})")
        inventory = Inventory(folder, frame.data.get("kinds", files.FILE_KINDS))
        for _ in inventory.steps():
            if len(inventory.files) >= FILES_PER_PAGE:
                self._send_page(frame, inventory)
            yield
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
        """Send a chunk of a file, when its turn comes; from its end if the offset is below 0."""
        self._pending.append(frame)

    def advance(self) -> None:
        """Send chunks, while the controller takes them."""
        if self._pending and self.context.can_send() and not self._sending:
            self._sending = True
            send = functools.partial(self._try_to_send, self._pending.popleft())
            self.context.files.submit(send, self._on_sent)

    def _on_sent(self, _: None) -> None:
        self._sending = False

    def _try_to_send(self, frame: Frame) -> None:
        try:
            self._send_chunk(frame)
        except Exception as error:  # noqa: BLE001 (the controller hears of it, whatever it is)
            self.context.refuse(frame, error_text(error))

    def _send_chunk(self, frame: Frame) -> None:
        request = frame.data
        folder = self.context.run_folder(frame)
        kind = request["file_kind"]
        path = request["path"]
        offset = int(request["offset"])
        files.validate(kind, path)
        base = self._output_folder(folder) if kind == files.OUTPUT else folder.root
        descriptor = open_below(base, path)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ValueError("it is no longer a file")
            if offset < 0:
                offset = max(0, status.st_size + offset)
            data = os.pread(descriptor, min(int(request["n"]), files.MAX_CHUNK), offset)
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        compressed = bool(request.get("compressed"))
        if compressed:
            sample = data[:COMPRESSION_SAMPLE]
            compressed = len(zlib.compress(sample, 1)) < MAX_COMPRESSED_RATIO * len(sample)
        self.context.answer(
            frame,
            "fetched",
            zlib.compress(data, 1) if compressed else data,
            offset=offset,
            eof=offset + len(data) >= status.st_size,
            size=status.st_size,
            mtime_ns=status.st_mtime_ns,
            compressed=compressed,
        )

    def _output_folder(self, folder: RunPaths) -> str:
        if folder.root not in self._output_folders:
            base, _ = working_folder(folder)
            if not base:
                raise ValueError("its working folder is not on record")
            self._output_folders[folder.root] = base
        return self._output_folders[folder.root]


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

    def steps(self) -> Steps:
        """Find the files, in steps."""
        root = self._folder.root
        if files.RECORD in self._kinds:
            for name in files.RECORD_FILES:
                self._add_if_file(files.RECORD, root, name)
        if {*self._kinds} & {files.LOG, files.SAMPLES}:
            yield from self._attempt_steps(root)
        if files.OUTPUT in self._kinds:
            base, patterns = working_folder(self._folder)
            if base and patterns:
                yield from self._walk(base, files.compile_globs(patterns))

    def _attempt_steps(self, root: str) -> Steps:
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
                        yield

    def _add_if_file(self, kind: str, root: str, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            status = os.lstat(os.path.join(root, path))
            if stat.S_ISREG(status.st_mode):
                self._add(kind, path, status, None)

    def _walk(self, base: str, matching: files.GlobState) -> Steps:
        """Walk through a folder, as deep as the patterns lead."""
        pending = [("", matching)]
        while pending:
            path, matching = pending.pop()
            yield
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
                for count, entry in enumerate(ordered):
                    child = os.path.join(path, entry.name)
                    below = files.step_globs(matching, entry.name)
                    if below and entry.is_dir(follow_symlinks=False):
                        subfolders.append((child, below))
                    elif below:
                        self._add_entry(descriptor, child, entry, below)
                    if count % ENTRIES_PER_STEP == ENTRIES_PER_STEP - 1:
                        yield
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
        self._file_count += 1
        self._path_bytes += len(path) + len(target or "")
        if self._file_count > MAX_FILES or self._path_bytes > MAX_PATH_BYTES:
            self.omitted_count += 1
            return
        size = 0 if target is not None else status.st_size
        mode = stat.S_IMODE(status.st_mode) & 0o777
        self.files.append(RemoteFile(kind, path, size, status.st_mtime_ns, mode, target))

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
