"""The host's end of a pull: what there is of a run to be brought home, and pieces of it.

Symbolic links are named and never followed, so that nothing outside of its folder is read.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import zlib
from collections import deque
from typing import Any, Collection, Deque, Dict, List, Optional, Tuple

from runner.core.protocol import globs
from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import RunFolder, folder_of
from runner.core.protocol.remote_files import (
    KINDS,
    LOG,
    LOG_PATH,
    MAX_PIECE,
    OUTPUT,
    RECORD,
    RECORDS,
    Found,
    check,
)
from runner.host.agent.handler import Duty, Handlers, Wire, said
from runner.host.process.job_queue import Steps

MAX_FILES = 200_000
MAX_NAMES = 32 << 20
"""Bytes of all paths of one inventory, at most."""

PAGE = 2000
SKIPS_TOLD = 20
STRIDE = 512
"""So many entries of a folder are looked at in one step."""

SAMPLE = 16 << 10
WORTH = 0.9
"""A piece is sent compressed if its beginning shrinks to less than this part of itself."""

FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Fetching(Duty):
    """Requests for the files of a run: its `inventory`, and `fetch` for a piece of one."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self._waiting: Deque[Frame] = deque()
        self._bases: Dict[Tuple[str, str], str] = {}

    def handlers(self) -> Handlers:
        """Return what answers each kind of request."""
        return {
            "inventory": lambda frame: self.wire.work.add(frame, self._inventory(frame)),
            "fetch": self._waiting.append,
        }

    def advance(self) -> None:
        """Answer with pieces, in the order they were asked for, while the controller takes them."""
        while self._waiting and self.wire.room():
            frame = self._waiting.popleft()
            try:
                self._fetch(frame)
            except Exception as error:  # noqa: BLE001 (the controller is told, whatever it is)
                self.wire.refuse(frame, said(error))

    def close(self) -> None:
        """Answer nothing more."""
        self._waiting.clear()

    def _inventory(self, frame: Frame) -> Steps:
        folder, number = self._folder(frame), frame.data["id"]
        if not os.path.isdir(folder.root):
            raise ValueError(f"there is no run {frame.data['run_id']} ({folder.root})")
        inventory = Inventory(folder, frame.data.get("kinds", KINDS))
        for _ in inventory.steps():
            if len(inventory.found) >= PAGE:
                self._page(number, inventory)
            yield
        self._page(number, inventory)
        told = {"left_out": inventory.left_out, "skips": inventory.skips}
        skipped = [list(each) for each in inventory.skipped]
        self.wire.reply("inventoried", {"id": number, **told, "skipped": skipped})

    def _page(self, number: Any, inventory: Inventory) -> None:
        rows = json.dumps([each.row() for each in inventory.found], separators=(",", ":"))
        inventory.found.clear()
        self.wire.reply("listed", {"id": number}, zlib.compress(rows.encode("ascii"), 1))

    def _fetch(self, frame: Frame) -> None:
        ask = frame.data
        kind, path, offset = ask["of"], ask["path"], int(ask["offset"])
        check(kind, path)
        descriptor = open_below(self._base(frame) if kind == OUTPUT else self._root(frame), path)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ValueError("it is no file any more")
            data = os.pread(descriptor, min(int(ask["n"]), MAX_PIECE), offset)
            after = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        small = zlib.compress(data, 1) if ask.get("z") and _shrinks(data) else data
        told = {"size": after.st_size, "mtime_ns": after.st_mtime_ns, "z": small is not data}
        eof = offset + len(data) >= after.st_size
        self.wire.reply("fetched", {"id": ask["id"], "offset": offset, "eof": eof, **told}, small)

    def _folder(self, frame: Frame) -> RunFolder:
        return folder_of(self.wire.workdir, frame.data["run_id"], frame.data["node"])

    def _root(self, frame: Frame) -> str:
        return self._folder(frame).root

    def _base(self, frame: Frame) -> str:
        key = frame.data["run_id"], frame.data["node"]
        if key not in self._bases:
            base, _ = working_folder(self._folder(frame))
            if not base:
                raise ValueError("its working folder is not on record")
            self._bases[key] = base
        return self._bases[key]


class Inventory:
    """What there is of one run on this host.

    Attributes:
        found: What was found and not taken from here yet.
        left_out: How many files more there are than an inventory may have.
        skips: How much was skipped.
        skipped: The first of it, as (path, why).
    """

    def __init__(self, folder: RunFolder, kinds: Collection[str]) -> None:
        self.found: List[Found] = []
        self.left_out = self.skips = 0
        self.skipped: List[Tuple[str, str]] = []
        self._folder, self._kinds = folder, kinds
        self._files = self._names = 0

    def steps(self) -> Steps:
        """Look everywhere."""
        root = self._folder.root
        if RECORD in self._kinds:
            for name in RECORDS:
                self._look(RECORD, root, name)
        if LOG in self._kinds:
            for attempt in sorted(os.listdir(root)):
                if attempt.startswith("attempt_"):
                    yield from self._logs(root, attempt)
        if OUTPUT in self._kinds:
            base, patterns = working_folder(self._folder)
            if base and patterns:
                yield from self._walk(base, globs.begin(patterns))

    def _logs(self, root: str, attempt: str) -> Steps:
        names: List[str] = []
        with contextlib.suppress(NotADirectoryError):
            names = sorted(os.listdir(os.path.join(root, attempt)))
        for name in names:
            if LOG_PATH.fullmatch(f"{attempt}/{name}"):
                self._look(LOG, root, f"{attempt}/{name}")
                yield

    def _look(self, kind: str, root: str, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            status = os.lstat(os.path.join(root, path))
            if stat.S_ISREG(status.st_mode):
                self._add(kind, path, status, None)

    def _walk(self, base: str, matching: globs.Matching) -> Steps:
        """Look through a folder, as far down as the patterns lead."""
        waiting = [("", matching)]
        while waiting:
            path, matching = waiting.pop()
            yield
            try:
                descriptor = open_below(base, path or ".", os.O_RDONLY | FOLDER)
            except OSError as error:
                if error.errno != errno.ENOENT:  # gone, or never made
                    self._skip(path or ".", said(error))
                continue
            deeper: List[Tuple[str, globs.Matching]] = []
            try:
                with os.scandir(descriptor) as entries:
                    ordered = sorted(entries, key=lambda entry: entry.name)
                for count, entry in enumerate(ordered):
                    below = globs.descend(matching, entry.name)
                    if below:
                        self._enter(descriptor, path, entry, below, deeper)
                    if count % STRIDE == STRIDE - 1:
                        yield
            except OSError as error:
                self._skip(path or ".", said(error))
            finally:
                os.close(descriptor)
            waiting += reversed(deeper)

    def _enter(
        self,
        at: int,
        above: str,
        entry: Any,
        below: globs.Matching,
        deeper: List[Tuple[str, globs.Matching]],
    ) -> None:
        """Take one entry of a folder for what it is."""
        path = f"{above}/{entry.name}" if above else entry.name
        if entry.is_dir(follow_symlinks=False):
            deeper.append((path, below))
            return
        try:
            status = entry.stat(follow_symlinks=False)
            link = stat.S_ISLNK(status.st_mode)
            target = os.readlink(entry.name, dir_fd=at) if link else None
        except FileNotFoundError:  # gone in between
            return
        if () not in below:
            if link and globs.named_below(below):
                self._skip(path, "is a symbolic link, which is not followed")
        elif link or stat.S_ISREG(status.st_mode):
            self._add(OUTPUT, path, status, target)
        else:
            self._skip(path, "is neither a file nor a link")

    def _add(self, kind: str, path: str, status: os.stat_result, target: Optional[str]) -> None:
        self._files += 1
        self._names += len(path) + len(target or "")
        if self._files > MAX_FILES or self._names > MAX_NAMES:
            self.left_out += 1
            return
        size = 0 if target is not None else status.st_size
        mode = stat.S_IMODE(status.st_mode) & 0o777
        self.found.append(Found(kind, path, size, status.st_mtime_ns, mode, target))

    def _skip(self, path: str, why: str) -> None:
        self.skips += 1
        if len(self.skipped) < SKIPS_TOLD:
            self.skipped.append((path, why))


def working_folder(folder: RunFolder) -> Tuple[str, Tuple[str, ...]]:
    """Return where the ranks of a run worked, and what of it is to be fetched; "" if unknown."""
    try:
        with open(folder.order, encoding="utf-8") as file:
            cwd = json.load(file)["cwd"]
        with open(folder.plan, encoding="utf-8") as file:
            patterns = json.load(file).get("outputs", ())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "", ()
    legal = [each for each in patterns if isinstance(each, str) and not globs.problem_of(each)]
    return str(cwd), tuple(legal)


def open_below(base: str, path: str, flags: int = FILE) -> int:
    """Open what is below a folder without following a link on the way.

    Raises:
        OSError: It is not there, or a link is.
    """
    at = os.open(base, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *above, name = path.split("/")
        for part in above:
            deeper = os.open(part, os.O_PATH | FOLDER, dir_fd=at)
            os.close(at)
            at = deeper
        return os.open(name, flags, dir_fd=at)
    finally:
        os.close(at)


def _shrinks(data: bytes) -> bool:
    sample = data[:SAMPLE]
    return len(zlib.compress(sample, 1)) < WORTH * len(sample)
