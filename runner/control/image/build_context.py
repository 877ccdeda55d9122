"""Build context: a Dockerfile and the files of its folder, as a tar file named by its content.

Files that git or `.runnerignore` ignores are left out, and those that `.dockerignore` names.
"""

from __future__ import annotations

import hashlib
import posixpath
import stat
import tarfile
import tempfile
from pathlib import Path
from typing import IO

from pathspec import GitIgnoreSpec

from runner.control.code import worktree
from runner.core.errors import ConfigError, Problem

KEY = "container.build"
DOCKERFILES = ("Dockerfile", "Containerfile")
DOCKERIGNORE = ".dockerignore"
MB = 1_000_000


class BuildContext:
    """The context of an image; equal files make an equal name, wherever and whenever.

    Attributes:
        dockerfile: The name of the Dockerfile in it.
        image: The name of the image that is built from it.
        file: The tar file, which nobody else can open.
    """

    def __init__(self, path: Path, max_mb: int) -> None:
        """Read the files; raise ConfigError if there is no Dockerfile, or they are too large."""
        found = find_dockerfile(path)
        self.dockerfile = found.name
        names = _select_files(found, max_mb)
        self.file = tempfile.TemporaryFile()  # noqa: SIM115 (see `close`)
        try:
            _write_tar(self.file, found.parent, names)
        except OSError as error:
            message = f"{error.filename or found.parent} cannot be read: {error.strerror}"
            raise ConfigError([Problem(KEY, message)]) from error
        self.image = f"runner-build:{_digest(self.file, self.dockerfile)[:16]}"

    def close(self) -> None:
        """Remove the tar file."""
        self.file.close()


def find_dockerfile(path: Path) -> Path:
    """Return the Dockerfile that a path names, or that is in its folder; raise ConfigError."""
    candidates = [path / name for name in DOCKERFILES] if path.is_dir() else [path]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    message = f"there is no {' or '.join(map(str, candidates))}"
    raise ConfigError([Problem(KEY, message, "name a Dockerfile, or the folder that has one")])


def _select_files(dockerfile: Path, max_mb: int) -> list[str]:
    """Return what is in the context, relative to the folder of the Dockerfile."""
    folder, name = dockerfile.parent, dockerfile.name
    tree = worktree.scan(folder)
    base = folder.resolve().relative_to(tree.root.resolve())
    prefix = "" if base == Path() else f"{base.as_posix()}/"
    paths = [p for p in (*tree.files, *tree.links, *tree.folders) if p.startswith(prefix)]
    ignored, kept = _dockerignore(folder), (prefix + name, prefix + DOCKERIGNORE)
    chosen = [p for p in paths if p in kept or not ignored.match_file(p.removeprefix(prefix))]
    if prefix + name not in chosen:
        hint = worktree.ignore_source(tree, prefix + name)
        raise ConfigError([Problem(KEY, f"{dockerfile} is ignored, so it is not sent", hint)])
    size = sum(tree.files[path].st_size for path in chosen if path in tree.files)
    if size > max_mb * MB:
        message = f"{folder} has {size / MB:.0f} MB, more than deploy.max_mb={max_mb}"
        hint = f"give the Dockerfile a folder of its own, or leave files out by {DOCKERIGNORE}"
        raise ConfigError([Problem(KEY, message, hint)])
    return sorted(path.removeprefix(prefix) for path in chosen)


def _dockerignore(folder: Path) -> GitIgnoreSpec:
    """Return the patterns of a folder, which docker takes to begin there."""
    file = folder / DOCKERIGNORE
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    patterns = []
    for line in (line.strip() for line in lines if not line.startswith("#")):
        sign, path = ("!", line[1:].strip()) if line.startswith("!") else ("", line)
        path = posixpath.normpath(path).lstrip("/") if path else "."
        patterns += [] if path == "." else [f"{sign}/{path}"]
    return GitIgnoreSpec.from_lines(patterns)


def _write_tar(file: IO[bytes], folder: Path, names: list[str]) -> None:
    """Write files whose times, owners and odd permissions do not count, as for docker's cache."""
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name in names:
            path, entry = folder / name, tarfile.TarInfo(name)
            status = path.lstat()
            entry.mode = 0o755 if stat.S_ISDIR(status.st_mode) or status.st_mode & 0o100 else 0o644
            if stat.S_ISLNK(status.st_mode):
                entry.type, entry.linkname = tarfile.SYMTYPE, str(path.readlink())
                tar.addfile(entry)
            elif stat.S_ISDIR(status.st_mode):
                entry.type = tarfile.DIRTYPE
                tar.addfile(entry)
            else:
                entry.size = status.st_size
                with path.open("rb") as content:
                    tar.addfile(entry, content)


def _digest(file: IO[bytes], dockerfile: str) -> str:
    file.seek(0)
    digest = hashlib.sha256(dockerfile.encode() + b"\0")
    while chunk := file.read(1 << 20):
        digest.update(chunk)
    return digest.hexdigest()
