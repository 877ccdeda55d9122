"""Boot of our processes: the code archive that a host may keep, and their descriptors.

The archive is a checksum, then a dict by `marshal`, which Python has at hand before anything is
imported. Its modules are there as source, or compiled for one version of Python.

A supervisor has a descriptor per host of the run, a controller up to three; the usual soft limit
(RLIMIT_NOFILE) is 1024. Programs that use select(2) need one no higher, so they get the one we had.
"""

from __future__ import annotations

import contextlib
import marshal
import resource
import zlib
from types import CodeType
from typing import List, Mapping, Optional, Tuple

FOLDER = "code"
"""The folder of the usual workdir in which hosts keep archives, each by its hash and its key."""

SOURCE = ""
"""The key of an archive of sources; a compiled one has that of the version: its magic number."""


def pack(
    key: str, modules: Mapping[str, Tuple[bool, bytes]], programs: Mapping[str, bytes]
) -> bytes:
    """Return the archive of modules of one `key`, and of programs of ours by the stem of a file.

    Of each module there is whether it is a package, and its compressed source or code.
    """
    content = marshal.dumps({"key": key, "modules": modules, "programs": programs}, 2)
    return b"%08x" % zlib.crc32(content) + content


def compiled(archive: bytes, key: str) -> bytes:
    """Return an archive for hosts with one version of Python, whose key it is, and no others."""
    content = marshal.loads(memoryview(archive)[8:])  # noqa: S302 (our own)
    if content["key"] == key:
        return archive
    modules = {}
    for name, (is_package, blob) in content["modules"].items():
        file = f"{name.replace('.', '/')}.py"
        code = compile(zlib.decompress(blob), file, "exec", dont_inherit=True)
        modules[name] = (is_package, code_blob(code))
    return pack(key, modules, content["programs"])


def code_blob(code: Optional[CodeType]) -> bytes:
    return zlib.compress(marshal.dumps(code))


_inherited: List[Tuple[int, int]] = []


def raise_to_hard() -> None:
    _inherited[:] = [inherited()]
    with contextlib.suppress(ValueError, OSError):  # unlimited, but for the kernel
        hard = inherited()[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def inherited() -> Tuple[int, int]:
    """Return the soft and the hard limit that new programs are to have."""
    return _inherited[0] if _inherited else resource.getrlimit(resource.RLIMIT_NOFILE)
