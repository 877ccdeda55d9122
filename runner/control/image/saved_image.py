"""Saved image: the archive that an engine makes of one, and the part of it that a host lacks.

Docker's archive is a tar file with a file for each layer. It loads one that lacks the files of
layers which it has, from the first one on; the others are sent.
"""

from __future__ import annotations

import io
import json
import os
import posixpath
import shutil
import subprocess
import tarfile
import tempfile
import threading
import zlib
from collections.abc import Iterator, Sequence
from typing import IO, cast

from runner.core.errors import NotReady, Problem

KEY = "container.push_image"
CHUNK = 256 << 10
MAX_READ = 8 << 20
"""Bytes to read for one chunk, however small they become: meanwhile nothing else is done."""

GZIP_WBITS = 31  # as zlib calls the format of gzip
ZSTD = ("zstd", "-1", "-T0", "--quiet", "--stdout")
TAR_END = bytes(2 * tarfile.BLOCKSIZE)
Range = tuple[int, int]
"""The first byte of a part of a file, and its size."""


class ByteStream:
    """Parts of a file, read without moving its position, and compressed as they are read."""

    def __init__(self, file: IO[bytes], ranges: Sequence[Range] = (), end: bytes = b"") -> None:
        """Read these parts, or the whole file; `end` follows them."""
        self._file, self._end = file, end
        self._ranges = ranges or [(0, os.fstat(file.fileno()).st_size)]
        self.size = sum(size for _, size in self._ranges)
        self.bytes_read = 0

    @property
    def percent(self) -> int:
        """How much of it was read."""
        return 100 * self.bytes_read // (self.size or 1)

    def gzip(self) -> Iterator[bytes]:
        """Yield it in chunks, as a gzip file."""
        compressor, buffer = zlib.compressobj(1, zlib.DEFLATED, GZIP_WBITS), b""
        last_read = 0
        for data in self._read():
            buffer += compressor.compress(data)
            is_long = self.bytes_read - last_read >= MAX_READ
            if len(buffer) >= CHUNK or (buffer and is_long):
                yield buffer
                buffer, last_read = b"", self.bytes_read
        yield buffer + compressor.flush()

    def zstd(self) -> Iterator[bytes]:
        """Yield it in chunks, as a file of zstd, whose program must be there."""
        pipe = subprocess.PIPE
        process = subprocess.Popen(ZSTD, stdin=pipe, stdout=pipe)  # noqa: S603
        stdin, stdout = process.stdin, cast("io.BufferedReader", process.stdout)
        assert stdin is not None  # noqa: S101 (for mypy)

        def write() -> None:
            try:
                for data in self._read():
                    stdin.write(data)
                stdin.close()
            except OSError:  # it has ended, and its code says why
                process.kill()

        threading.Thread(target=write, daemon=True, name="zstd").start()
        try:
            while chunk := stdout.read1(CHUNK):
                yield chunk
            if code := process.wait():
                raise NotReady([Problem(KEY, f"{ZSTD[0]} ended with {code} on this machine")])
        finally:
            process.kill()
            process.wait()
            stdout.close()

    def _read(self) -> Iterator[bytes]:
        for start, size in self._ranges:
            for offset in range(start, start + size, CHUNK):
                data = os.pread(self._file.fileno(), min(CHUNK, start + size - offset), offset)
                self.bytes_read += len(data)
                yield data
        if self._end:
            yield self._end


class SavedImage:
    """An image as an engine of this machine saved it.

    Attributes:
        size: In bytes.
        layers: The digests of its layers, the lowest first.
    """

    def __init__(self, save: Sequence[str]) -> None:
        """Begin to save it in another thread, into a file that only we can open."""
        self.size, self.layers = 0, ()  # type: int, tuple[str, ...]
        self._error: NotReady | None = None
        self._members: list[tarfile.TarInfo] = []
        self._layer_files: tuple[str, ...] = ()
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (see `close`)
        self._process = subprocess.Popen(  # noqa: S603
            save, stdout=self._file, stderr=subprocess.PIPE
        )
        self._thread = threading.Thread(target=self._save, daemon=True, name="save")
        self._thread.start()

    @property
    def is_saved(self) -> bool:
        """Whether that has ended."""
        return not self._thread.is_alive()

    def close(self) -> None:
        """Remove the file; end the engine if it has not ended."""
        self._process.kill()
        self._thread.join()
        self._file.close()

    def check(self) -> None:
        """Raise NotReady if it could not be saved."""
        if self._error:
            raise self._error

    def known_layers(self, layers_there: Sequence[Sequence[str]]) -> int:
        """Return how many of its layers, from the lowest on, a host has as part of an image."""
        return max((_common_prefix(self.layers, layers) for layers in layers_there), default=0)

    def stream(self, known_layers: int = 0) -> ByteStream:
        """Return what to send to a host that has so many of its layers."""
        needed = {*self._layer_files[known_layers:]}
        for member in self._members:  # equal layers are links to one of them
            if member.issym():
                folder = posixpath.dirname(member.name)
                needed.add(posixpath.normpath(posixpath.join(folder, member.linkname)))
            elif member.islnk():
                needed.add(member.linkname)
        left_out = {*self._layer_files[:known_layers]} - needed
        if not left_out:
            return ByteStream(self._file)
        ends = [member.offset for member in self._members[1:]] + [self.size - len(TAR_END)]
        ranges = [
            (member.offset, end - member.offset)
            for member, end in zip(self._members, ends, strict=True)
            if member.name not in left_out
        ]
        return ByteStream(self._file, ranges, TAR_END)

    def _save(self) -> None:
        try:
            _, errors = self._process.communicate()
            if self._process.returncode:
                lines = errors.decode(errors="replace").strip().splitlines() or ["no reason"]
                self._fail(f"it cannot be saved on this machine: {lines[-1]}")
                return
            self._read_index()
        except (OSError, tarfile.TarError, KeyError, ValueError) as error:
            self._fail(f"what was saved of it cannot be read: {error}")

    def _fail(self, message: str) -> None:
        hint = f"TMPDIR is where it is saved, now {tempfile.gettempdir()}: is there room?"
        self._error = NotReady([Problem(KEY, message, hint)])

    def _read_index(self) -> None:
        """Find the files of the layers: `manifest.json` and the image's configuration name them."""
        self._file.seek(0)
        with tarfile.open(fileobj=self._file) as tar:
            self._members = tar.getmembers()
            manifest = json.load(_open(tar, "manifest.json"))[0]
            config = json.load(_open(tar, manifest["Config"]))
        self.size = os.fstat(self._file.fileno()).st_size
        self._layer_files = tuple(manifest["Layers"])
        self.layers = tuple(config["rootfs"]["diff_ids"])


def _open(tar: tarfile.TarFile, name: str) -> IO[bytes]:
    file = tar.extractfile(name)
    if file is None:
        raise KeyError(name)
    return file


def _common_prefix(first: Sequence[str], second: Sequence[str]) -> int:
    """Return how many items two sequences begin with in common."""
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def has_zstd() -> bool:
    """Whether this machine has the program of zstd."""
    return shutil.which(ZSTD[0]) is not None
