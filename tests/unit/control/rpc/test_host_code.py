"""Code that travels with a connection, and what a host keeps of it."""

from __future__ import annotations

import marshal
import os
import py_compile
import re
import subprocess
import sys
import zlib
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from runner.control.rpc import host_code
from runner.core.wire.boot import SOURCE
from runner.core.wire.codec import MAGIC
from runner.host.storage.code_cache import MAX_ARCHIVES, store

LOADER = 'exec(open(0,"rb",0,closefd=False).readline())'


def archive(key: str) -> dict[str, Any]:
    size, data = host_code.archive_for(key).split(b"\n", 1)
    assert int(size) == len(data)
    content: dict[str, Any] = marshal.loads(memoryview(data)[8:])  # noqa: S302 (our own)
    return content


@pytest.mark.parametrize("key", [host_code.KEY, "0a0d0d0a"])
def test_only_wire_and_host_travel(key: str) -> None:
    """Hosts get no other room; compiled if the version is this one's, else as source."""
    sent = archive(key)
    modules = sent["modules"]
    rooms = {name.removeprefix("runner.").removeprefix("core.").split(".")[0] for name in modules}
    assert rooms == {"runner", "core", "wire", "host"}
    assert "runner.host.agent.server" in modules
    assert modules["runner.host"][0] is True
    assert sent["key"] == (key if key == host_code.KEY else SOURCE)
    assert {"shim", "spawner", "sitecustomize", "preload"} <= set(sent["programs"])


def booted(home: Path, *, sends: bool) -> bytes:
    """Boot an agent in a home folder; return what it says until the agent or nothing follows."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", LOADER, "runner"],
        env={**os.environ, "HOME": str(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(host_code.boot_line())
        process.stdin.flush()
        said = process.stdout.readline() + process.stdout.readline()
        if sends:
            process.stdin.write(host_code.archive_for(host_code.KEY))
            process.stdin.flush()
        answered = process.stdout.read(len(MAGIC)) if sends or b"code \n" in said else b""
        process.stdin.close()
        process.kill()
    assert answered in (MAGIC, b"")
    return said


def place(home: Path) -> Path:
    digest = re.search(rb"[0-9a-f]{32}", host_code.boot_line())
    assert digest is not None
    return home / ".runner" / "code" / f"{digest[0].decode()}-{host_code.KEY}"


@pytest.mark.parametrize("key", [host_code.KEY, SOURCE])
def test_what_a_host_has_kept_does_not_travel_again(tmp_path: Path, key: str) -> None:
    """Compiled there if it came as source; it is private, and only a few are kept."""
    tmp_path.chmod(0o700)
    assert booted(tmp_path, sends=True) == b"\nrunner-boot: code %s\n" % host_code.KEY.encode()
    data = host_code.archive_for(key).split(b"\n", 1)[1]
    for number in range(MAX_ARCHIVES + 2):
        store(f"{place(tmp_path)}{number}-{host_code.KEY}", data)
    store(str(place(tmp_path)), data)
    assert len(list(place(tmp_path).parent.iterdir())) == MAX_ARCHIVES
    assert place(tmp_path).stat().st_mode & 0o777 == 0o600
    assert booted(tmp_path, sends=False) == b"\nrunner-boot: code \n"


@pytest.mark.parametrize("harm", ["torn", "link"])
def test_what_is_not_as_it_was_kept_is_not_used(tmp_path: Path, harm: str) -> None:
    """A power cut may tear it, and nobody else may have written it."""
    tmp_path.chmod(0o700)
    store(str(place(tmp_path)), host_code.archive_for(host_code.KEY).split(b"\n", 1)[1])
    if harm == "torn":
        os.truncate(place(tmp_path), 100_000)
    else:
        place(tmp_path).rename(tmp_path / "elsewhere")
        place(tmp_path).symlink_to(tmp_path / "elsewhere")
    assert host_code.KEY.encode() in booted(tmp_path, sends=True)


def test_an_update_while_we_run_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hosts would keep it under the hash of what we began with."""
    caches = (host_code._sources, host_code._boot_line, host_code._archive_for)
    monkeypatch.setattr(host_code, "_PACKAGE", tmp_path / "runner")
    monkeypatch.setattr(host_code, "PROGRAMS", ("module",))
    module = tmp_path / "runner" / "host" / "module.py"
    module.parent.mkdir(parents=True)
    module.write_text("x = 1\n")
    os.utime(module, (1_000_000_000, 1_000_000_000))
    for cache in caches:
        cache.cache_clear()
    try:
        line = host_code.boot_line()
        module.write_text("x = 2\n")
        os.utime(module, (1_000_000_001, 1_000_000_001))
        py_compile.compile(str(module))
        compiled = archive(host_code.KEY)["modules"]["runner.host.module"][1]
        code: CodeType = marshal.loads(zlib.decompress(compiled))  # noqa: S302 (our own)
        assert (code.co_consts[0], host_code.boot_line()) == (1, line)
        sources = archive(SOURCE)
        blobs = (sources["modules"]["runner.host.module"][1], sources["programs"]["module"])
        assert {zlib.decompress(blob) for blob in blobs} == {b"x = 1\n"}
    finally:
        for cache in caches:
            cache.cache_clear()
