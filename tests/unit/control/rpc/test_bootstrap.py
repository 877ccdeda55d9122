"""The start of an agent: code that travels, and what a host keeps of that."""

from __future__ import annotations

import marshal
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from runner.control.rpc import bootstrap
from runner.core.spec import Cluster, Node, Spec
from runner.core.wire.boot import SOURCE
from runner.core.wire.codec import MAGIC
from runner.host.storage.pool import MAX_ARCHIVES, store_archive


@pytest.mark.parametrize("python", ["no-such-python", "~/it's not/there"])
def test_missing_python_is_told_in_words_of_ours(python: str) -> None:
    """Any POSIX shell gets as far as saying so, whatever the path looks like."""
    cluster = Cluster(name="lab", host_python=python)
    spec = Spec(run_id="0102-0304-x-abcd", cluster=cluster, nodes=(Node("gpu1", "gpu1"),))
    words = bootstrap.boot_command(spec, spec.nodes[0])

    done = subprocess.run(words, capture_output=True, check=False)

    said = bootstrap.SHELL_STARTED + b"runner-boot: no-python\n"
    assert (done.returncode, done.stdout, done.stderr) == (127, said, b"")


def archive(key: str) -> dict[str, Any]:
    size, data = bootstrap.archive_for(key).split(b"\n", 1)
    assert int(size) == len(data)
    content: dict[str, Any] = marshal.loads(memoryview(data)[8:])  # noqa: S302 (our own)
    return content


@pytest.mark.parametrize("key", [bootstrap.KEY, "0a0d0d0a"])
def test_only_wire_and_host_travel(key: str) -> None:
    """Hosts get no other room; compiled if the version is this one's, else as source."""
    sent = archive(key)
    modules = sent["modules"]
    rooms = {name.removeprefix("runner.").removeprefix("core.").split(".")[0] for name in modules}
    assert rooms == {"runner", "core", "wire", "host"}
    assert "runner.host.agent.server" in modules
    assert modules["runner.host"][0] is True
    assert sent["key"] == (key if key == bootstrap.KEY else SOURCE)
    assert {"shim", "spawner", "sitecustomize", "preload"} <= set(sent["programs"])


def booted(home: Path, *, sends: bool) -> bytes:
    """Boot an agent in a home folder; return what it says until the agent or nothing follows."""
    with subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", bootstrap._LOADER, "runner"],
        env={**os.environ, "HOME": str(home)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(bootstrap.boot_line())
        process.stdin.flush()
        said = process.stdout.readline() + process.stdout.readline()
        if sends:
            process.stdin.write(bootstrap.archive_for(bootstrap.KEY))
            process.stdin.flush()
        answered = process.stdout.read(len(MAGIC)) if sends or b"code \n" in said else b""
        process.stdin.close()
        process.kill()
    assert answered in (MAGIC, b"")
    return said


def place(home: Path) -> Path:
    digest = re.search(rb"[0-9a-f]{32}", bootstrap.boot_line())
    assert digest is not None
    return home / ".runner" / "code" / f"{digest[0].decode()}-{bootstrap.KEY}"


@pytest.mark.parametrize("key", [bootstrap.KEY, SOURCE])
def test_what_a_host_has_kept_does_not_travel_again(tmp_path: Path, key: str) -> None:
    """Compiled there if it came as source; it is private, and only a few are kept."""
    tmp_path.chmod(0o700)
    assert booted(tmp_path, sends=True) == b"\nrunner-boot: code %s\n" % bootstrap.KEY.encode()
    data = bootstrap.archive_for(key).split(b"\n", 1)[1]
    for number in range(MAX_ARCHIVES + 2):
        store_archive(f"{place(tmp_path)}{number}-{bootstrap.KEY}", data)
    store_archive(str(place(tmp_path)), data)
    assert len(list(place(tmp_path).parent.iterdir())) == MAX_ARCHIVES
    assert place(tmp_path).stat().st_mode & 0o777 == 0o600
    assert booted(tmp_path, sends=False) == b"\nrunner-boot: code \n"


@pytest.mark.parametrize("harm", ["torn", "link"])
def test_what_is_not_as_it_was_kept_is_not_used(tmp_path: Path, harm: str) -> None:
    """A power cut may tear it, and nobody else may have written it."""
    tmp_path.chmod(0o700)
    store_archive(str(place(tmp_path)), bootstrap.archive_for(bootstrap.KEY).split(b"\n", 1)[1])
    if harm == "torn":
        os.truncate(place(tmp_path), 100_000)
    else:
        place(tmp_path).rename(tmp_path / "elsewhere")
        place(tmp_path).symlink_to(tmp_path / "elsewhere")
    assert bootstrap.KEY.encode() in booted(tmp_path, sends=True)
