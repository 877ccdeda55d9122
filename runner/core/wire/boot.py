"""Boot of our processes: the code archive that a host may keep, and their descriptors.

The archive is a checksum, then a dict by `marshal`, which Python has at hand before anything is
imported. Each module is there as source, or compiled for one version of Python, or both.

A supervisor has a descriptor per host of the run, a controller up to three; the usual soft limit
(RLIMIT_NOFILE) is 1024. Programs that use select(2) need one no higher, so they get the one we had.
"""

from __future__ import annotations

import contextlib
import marshal
import resource
import zlib
from types import CodeType
from typing import Dict, List, Mapping, NamedTuple, Optional, Tuple

FOLDER = "code"
"""The folder of the usual workdir in which hosts keep archives, each by its hash and its key."""

SOURCE = ""
"""The key of a module's source; compiled, it has that of the version: its magic number, in hex."""

IMPORTER = "runner.host.process.importer"
"""The module that the boot line executes; it imports the others."""

Blobs = Dict[str, bytes]


class Archive(NamedTuple):
    """What an archive holds, compressed: modules by name, and programs of ours by that of a file.

    Of a module there is whether it is a package, and its blobs by key.
    """

    modules: Dict[str, Tuple[bool, Blobs]]
    programs: Blobs

    def pack(self) -> bytes:
        """Return it as one message."""
        content = marshal.dumps({"modules": self.modules, "programs": self.programs}, 2)
        return b"%08x" % zlib.crc32(content) + content

    def compiled(self, key: str) -> Archive:
        """Return it for hosts with this version of Python, whose key it is, and for no others."""
        modules = {
            name: (is_package, {key: compile_source(name, blobs[SOURCE])})
            for name, (is_package, blobs) in self.modules.items()
        }
        return self._replace(modules=modules)


def unpack(data: bytes) -> Archive:
    """Return what a message holds that arrived whole."""
    content: Mapping[str, object] = marshal.loads(memoryview(data)[8:])  # noqa: S302 (our own)
    return Archive(**content)  # type: ignore[arg-type]


def compile_source(name: str, blob: bytes) -> bytes:
    file = f"{name.replace('.', '/')}.py"
    return code_blob(compile(zlib.decompress(blob), file, "exec", dont_inherit=True))


def code_blob(code: Optional[CodeType]) -> bytes:
    return zlib.compress(marshal.dumps(code))


_inherited: List[Tuple[int, int]] = []


def raise_to_hard() -> None:
    """Let this process open as many files as it may."""
    _inherited[:] = [inherited()]
    with contextlib.suppress(ValueError, OSError):  # unlimited, but for the kernel
        hard = inherited()[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def inherited() -> Tuple[int, int]:
    """Return the soft and the hard limit that new programs are to have."""
    return _inherited[0] if _inherited else resource.getrlimit(resource.RLIMIT_NOFILE)
