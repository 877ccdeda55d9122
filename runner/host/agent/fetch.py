"""Fetch requests: the inventory of a run's files, and chunks of them.

Symbolic links are named and never followed, so that nothing outside the run's folder is read; but
for those of `task.keep`.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import zlib
from typing import Any, Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from runner.core.wire import files
from runner.core.wire.codec import Frame
from runner.core.wire.files import CHUNK, MAX_LIST, RemoteFile
from runner.core.wire.paths import RunPaths, kept_folder
from runner.host.agent.server import RequestHandler, error_text
from runner.host.process.jobs import checkpoint

MAX_SKIPS_REPORTED = 20
FOLDER_FLAGS = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Handler(RequestHandler):
    def on_inventory(self, frame: Frame) -> None:
        """List the files of a run: those of the kinds, and the outputs that `patterns` name."""
        folder = self.agent.run_folder(frame)
        if not os.path.isdir(folder.root):
            raise ValueError(f"there is no run {frame.data['run_id']} ({folder.root})")
        inventory = Inventory(folder, frame.data["kinds"], frame.data["patterns"])
        rows = f"[{','.join(inventory.rows)}]".encode("ascii")
        skipped = inventory.skipped
        if inventory.skip_count > len(skipped):
            skipped.append(f"and {inventory.skip_count - len(skipped)} more")
        self.agent.answer(
            frame,
            "inventory",
            zlib.compress(rows, 1),
            omitted_count=inventory.omitted_count,
            skipped=skipped,
        )

    def on_fetch(self, frame: Frame) -> None:
        folder = self.agent.run_folder(frame)
        outputs = Outputs.of(folder)
        for kind, path, offset, size, mtime_ns in frame.data["files"]:
            try:
                files.validate(kind, path)
                base = folder.root
                below = path
                if kind == files.OUTPUT:
                    base, below = outputs.locate(path)
                descriptor = open_below(base, below)
                try:
                    self._send_file(frame, descriptor, path, offset, size, mtime_ns)
                finally:
                    os.close(descriptor)
            except (OSError, ValueError) as error:
                reason = error_text(error)
                self.agent.answer(frame, "data", file=path, offset=0, error=reason, eof=True)
        self.agent.answer(frame, "streamed")

    def _send_file(
        self,
        frame: Frame,
        descriptor: int,
        path: str,
        offset: int,
        size: int,
        mtime_ns: Optional[int],
    ) -> None:
        """Send a file; raise ValueError if it is another one by its size or time, if it has one."""
        is_last = False
        while not is_last:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise ValueError("it is no longer a file")
            version = (status.st_size, status.st_mtime_ns)
            if mtime_ns is not None and version != (size, mtime_ns):
                raise ValueError("it changed meanwhile")
            room = self.agent.credit.take(min(CHUNK, size - offset))
            sent = 0
            try:
                data = os.pread(descriptor, room, offset)
                is_last = offset + len(data) >= size or not data
                self.agent.answer(frame, "data", data, file=path, offset=offset, eof=is_last)
                sent = len(data)
            finally:
                self.agent.credit.grant(room - sent)
            offset += sent


class Inventory:
    """The files of one run on this host, as rows of JSON."""

    def __init__(self, folder: RunPaths, kinds: Collection[str], patterns: Sequence[str]) -> None:
        self.rows: List[str] = []
        self.omitted_count = 0  # files beyond the limit
        self.skipped: List[str] = []  # what was left out and why, of the first ones
        self.skip_count = 0
        self._size = 0
        self._checked_out_ns = 0  # what has not changed since is no output, but code
        with contextlib.suppress(OSError):
            self._checked_out_ns = os.stat(folder.checked_out).st_ctime_ns
        if files.RECORD in kinds:
            for name in files.RECORD_FILES:
                self._add_if_file(files.RECORD, folder.root, name)
        for kind, legal in ((files.LOG, files.LOG_PATH), (files.SAMPLES, files.SAMPLES_PATH)):
            for attempt in sorted(os.listdir(folder.root)) if kind in kinds else ():
                attempt_folder = os.path.join(folder.root, attempt)
                is_attempt = attempt.startswith("attempt_") and os.path.isdir(attempt_folder)
                for name in sorted(os.listdir(attempt_folder)) if is_attempt else ():
                    if legal.fullmatch(f"{attempt}/{name}"):
                        self._add_if_file(kind, folder.root, f"{attempt}/{name}")
        if files.OUTPUT in kinds:
            outputs = Outputs.of(folder)
            wanted = patterns or outputs.patterns
            for name in ("", *outputs.kept) if outputs.cwd and wanted else ():
                state = files.compile_globs(wanted)
                for part in name.split("/") if name else ():
                    state = files.step_globs(state, part)
                if name and patterns:  # of any run, since they are asked for by name
                    self._checked_out_ns = 0
                with contextlib.suppress(FileNotFoundError):  # removed, or never made
                    if state:
                        self._find_outputs(outputs, name, state)

    def _add_if_file(self, kind: str, root: str, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            status = os.lstat(os.path.join(root, path))
            if stat.S_ISREG(status.st_mode):
                self._add(kind, path, status)

    def _find_outputs(self, outputs: Outputs, kept: str, state: files.GlobState) -> None:
        """Find what matches in the working folder or in one that is kept, as deep as it leads."""
        base = os.path.realpath(outputs.kept.get(kept, outputs.cwd))
        prefix = f"{kept}/" if kept else ""
        states = {base: state}
        for folder, subfolders, names, folder_fd in os.fwalk(base, onerror=self._on_error):
            state = states.pop(folder)
            entries = sorted((*subfolders, *names))
            subfolders.clear()
            for name in entries:
                checkpoint()
                matching = files.step_globs(state, name)
                try:
                    status = os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
                except FileNotFoundError:  # removed in between
                    continue
                place = os.path.join(folder, name)
                if matching and stat.S_ISDIR(status.st_mode):
                    subfolders.append(name)
                    states[place] = matching
                elif matching and prefix + place[len(base) + 1 :] not in outputs.kept:
                    self._add_output(prefix + place[len(base) + 1 :], status, matching)

    def _on_error(self, error: OSError) -> None:
        if error.errno != errno.ENOENT:
            self._skip(f"{error.filename}: {error.strerror}")

    def _add_output(self, path: str, status: os.stat_result, matching: files.GlobState) -> None:
        is_link = stat.S_ISLNK(status.st_mode)
        leads_on = () not in matching and files.matches_below(matching)
        if () in matching and status.st_ctime_ns <= self._checked_out_ns:
            return
        if () in matching and stat.S_ISREG(status.st_mode):
            self._add(files.OUTPUT, path, status)
        elif is_link and (() in matching or leads_on):
            self._skip(f"{path}: is a symbolic link, which is not followed")
        elif () in matching:
            self._skip(f"{path}: is no file")

    def _skip(self, text: str) -> None:
        self.skip_count += 1
        if len(self.skipped) < MAX_SKIPS_REPORTED:
            self.skipped.append(text)

    def _add(self, kind: str, path: str, status: os.stat_result) -> None:
        checkpoint()
        mode = stat.S_IMODE(status.st_mode) & 0o777
        file = RemoteFile(kind, path, status.st_size, status.st_mtime_ns, mode)
        row = json.dumps(file.to_row(), separators=(",", ":"))
        self._size += len(row) + 1
        if self._size < MAX_LIST:
            self.rows.append(row)
        else:
            self.omitted_count += 1


class Outputs(NamedTuple):
    """Where the files are that a run's ranks leave, and which of them are wanted."""

    cwd: str = ""  # "" if it is not on record
    patterns: Tuple[str, ...] = ()
    kept: Mapping[str, str] = {}  # where the links of the folders lead that outlive a run, by path

    @staticmethod
    def of(folder: RunPaths) -> Outputs:
        """Return what is on record."""
        order = _read_json(folder.order)
        plan = _read_json(folder.plan)
        texts = (each for each in plan.get("outputs", ()) if isinstance(each, str))
        patterns = tuple(text for text in texts if not files.glob_problem(text))
        workdir = str(order.get("workdir", ""))
        place = str(order.get("keep_place", ""))
        kept = {name: kept_folder(workdir, place, name) for name in map(str, order.get("keep", ()))}
        return Outputs(str(order.get("cwd", "")), patterns, kept)

    def locate(self, path: str) -> Tuple[str, str]:
        """Return the folder of an output, and its path below that; ValueError where it is unknown.

        The links of kept folders are the only ones that are followed.
        """
        for name, place in self.kept.items():
            if path.startswith(f"{name}/"):
                return place, path[len(name) + 1 :]
        if not self.cwd:
            raise ValueError("its working folder is not on record")
        return self.cwd, path


def _read_json(path: str) -> Dict[str, Any]:
    try:
        with open(path, encoding="utf-8") as file:
            data = json.load(file)
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def open_below(base: str, path: str) -> int:
    """Open a file below a folder; raise OSError, also if a part of the path is a link."""
    dir_fd = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *parents, name = path.split("/")
        for folder in parents:
            child_fd = os.open(folder, os.O_PATH | FOLDER_FLAGS, dir_fd=dir_fd)
            os.close(dir_fd)
            dir_fd = child_fd
        return os.open(name, FILE_FLAGS, dir_fd=dir_fd)
    finally:
        os.close(dir_fd)
