"""Bootloader of a host: executes our code from its cache there, or reads and executes an archive.

A cached archive is executed only if it and its folder are owned by the user and writable by no one
else, and if its checksum holds (`host/storage/code_cache.py` writes it).
"""

from __future__ import annotations

import re

from runner.core.wire.boot import IMPORTER

ANSWER = re.compile(rb"\nrunner-boot: code ([0-9a-f]*)\n")
"""What it says: "" if the cache has the code, else the key of its Python's version."""

PROGRAM = """\
import sys
if sys.version_info < (3, 8):
    sys.exit("runner-boot: python-too-old %d.%d" % sys.version_info[:2])
import _thread, marshal, os, zlib
from _frozen_importlib_external import MAGIC_NUMBER
f = open(0, "rb", 0, closefd=False)
key, place, kept, d = MAGIC_NUMBER.hex(), PLACE, [], b""
def read_trusted(folder, name):
    try:
        fd = os.open(place, os.O_NOFOLLOW)
        c = os.read(fd, 1 << 26)
        s = os.fstat(fd), os.lstat(folder)
        os.close(fd)
        if all(i.st_uid == os.geteuid() and not i.st_mode & 0o22 for i in s):
            if c[:8] == b"%08x" % zlib.crc32(c[8:]):
                kept.append(c)
    except OSError:
        pass
    done.release()
if place:
    place = os.path.expanduser(place) + "-" + key
    done = _thread.allocate_lock()
    done.acquire()
    _thread.start_new_thread(read_trusted, os.path.split(place))
    done.acquire(True, 2)
    d = b"".join(kept)
    os.write(1, b"\\nrunner-boot: code %s\\n" % (b"" if d else key.encode()))
if d:
    place = ""
else:
    n = int(f.readline())
    while len(d) < n:
        c = f.read(n - len(d))
        if not c:
            sys.exit("runner-boot: cut-off")
        d += c
content = marshal.loads(memoryview(d)[8:])
blobs = content["modules"]["IMPORTER"][1]
if key in blobs:
    code = marshal.loads(zlib.decompress(blobs[key]))
else:
    code = zlib.decompress(blobs[""])
names = {"__name__": "IMPORTER"}
exec(code, names)
names["start"](content, key, d, place)
"""
"""Any Python 3 gets far enough in it to report that it is too old.

The cache is read in a thread: the home folder may hang.
"""


def line(place: str) -> bytes:
    """Return it as one line of Python, with the path of the cached archive, "" for no cache."""
    program = PROGRAM.replace("PLACE", repr(place)).replace("IMPORTER", IMPORTER)
    return f"exec({program!r})\n".encode()
