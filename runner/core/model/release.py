"""A release: one snapshot of the code, named by the hash of its manifest."""

from __future__ import annotations

import hashlib
import json
import posixpath
from dataclasses import dataclass
from typing import Dict, Iterable, Iterator, List, Tuple

HASH_LENGTH = 16


@dataclass(frozen=True)
class CodeRef:
    """The code that is sent with a run."""

    tasks_hash: str = ""  # of the shipped tasks; "" for a task of the user's
    release: str = ""  # that ranks run in; "" if they run in `project`
    subdirectory: str = ""  # the user's working directory within the release
    script: str = ""  # `task.script` relative to that; "" if it is used as it is
    commit: str = ""  # of git, with "+" if files differ from it


def tasks_digest(files: Iterable[Tuple[str, bytes]]) -> str:
    """Return the hash of the shipped tasks: of their names and contents, in the order of names."""
    digest = hashlib.sha256()
    for name, content in sorted(files):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:HASH_LENGTH]


@dataclass(frozen=True)
class File:
    """A file of a release: its path (with "/"), permissions, size in bytes, sha256 in hex."""

    path: str
    mode: int
    size: int
    digest: str


@dataclass(frozen=True)
class Symlink:
    """A symbolic link of a release: its path and its literal target."""

    path: str
    target: str


@dataclass(frozen=True)
class Folder:
    """A folder of a release: its path and permissions."""

    path: str
    mode: int


@dataclass(frozen=True)
class Manifest:
    """Everything in a release except the contents of files; each group is sorted by path.

    Names that are not UTF-8 are kept as `os.fsdecode` returns them.
    """

    folders: Tuple[Folder, ...] = ()
    files: Tuple[File, ...] = ()
    links: Tuple[Symlink, ...] = ()

    def encode(self) -> bytes:
        """Return the manifest as bytes, the same ones for equal manifests."""
        rows = {
            "folders": [[item.path, item.mode] for item in self.folders],
            "files": [[item.path, item.mode, item.size, item.digest] for item in self.files],
            "links": [[item.path, item.target] for item in self.links],
        }
        return json.dumps(rows, separators=(",", ":")).encode("ascii")

    @staticmethod
    def decode(data: bytes) -> Manifest:
        """Return the manifest that `encode` encoded.

        Raises:
            ValueError: It is no manifest, or has paths outside its folder.
        """
        try:
            rows = json.loads(data)
            manifest = Manifest(
                tuple(Folder(*row) for row in rows["folders"]),
                tuple(File(*row) for row in rows["files"]),
                tuple(Symlink(*row) for row in rows["links"]),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"no manifest of a release: {error}") from error
        for problem in manifest.problems():
            raise ValueError(problem)
        return manifest

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def problems(self) -> Iterator[str]:
        """Yield the reasons why this is not a valid tree."""
        folders = {"", *(folder.path for folder in self.folders)}
        seen = set()
        paths: List[str] = [folder.path for folder in self.folders]
        paths += [file.path for file in self.files]
        paths += [link.path for link in self.links]
        for path in paths:
            if any(part in ("", ".", "..") for part in path.split("/")):
                yield f"{path!r} is no path within a release"
            elif posixpath.dirname(path) not in folders:
                yield f"the folder of {path!r} is not in the manifest"
            elif path in seen:
                yield f"{path!r} is in the manifest twice"
            seen.add(path)


def release_hash(encoded: bytes) -> str:
    return hashlib.sha256(encoded).hexdigest()[:HASH_LENGTH]


def unique_contents(manifest: Manifest) -> List[File]:
    """Return one file per distinct content, in the order in which contents are streamed."""
    first: Dict[str, File] = {}
    for file in manifest.files:
        first.setdefault(file.digest, file)
    return list(first.values())
