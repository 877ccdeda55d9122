"""Far end of many connections: one process that is the sshd and the agent of every host.

    python -m benchmarks.far_end RECORDING PORT_FILE HOST_KEY CLIENT_KEY SECONDS

It answers as a real host did whose answers are in RECORDING, with the name and address of each
host and the run's id in their place, so that what is measured is the controller. Ranks print a line
and end after SECONDS. Its port is written to PORT_FILE.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh

from runner.core.wire.codec import MAGIC, Frame, FrameDecoder

BACKLOG = 1024
BOOT_WORDS = re.compile(r" runner (\S+) (\S+) v\d+")


@dataclass(frozen=True)
class Recording:
    """What one host answered in a run, as text.

    Attributes:
        names: Its name and address, and the id of the run.
        facts: The header of the frame with its facts.
        began: Its events until its ranks had started.
        ended: The others.
    """

    names: list[str]
    facts: str
    began: str
    ended: str

    def told_by(self, node: str, address: str, run_id: str) -> Recording:
        """Return what another host would have answered: `n1` has rank 0, and so on."""

        def changed(text: str) -> str:
            text = text.replace(f"{self.names[1]}/24", f"{self.names[1]}/16")  # one subnet for all
            for old, new in zip(self.names, (node, inside(address), run_id), strict=True):
                text = text.replace(old, new)
            return text.replace('"rank":0', f'"rank":{int(node[1:]) - 1}')

        return Recording([], *map(changed, (self.facts, self.began, self.ended)))


def timed(text: str) -> bytes:
    """Return events that happen now."""
    text = re.sub(r'"mono": ?[\d.]+', f'"mono": {time.monotonic()}', text)
    return re.sub(r'"wall": ?[\d.]+', f'"wall": {time.time()}', text).encode()


def inside(address: str) -> str:
    """Return the address that a host tells: its own is one of this machine, which none shares."""
    return address.replace("127.1.", "10.99.")


@dataclass
class Host:
    """One host, as far as its controller can tell."""

    recording: Recording
    seconds: float
    logs: dict[str, bytes] = field(default_factory=dict)
    waiting: list[Frame] = field(default_factory=list)  # requests to read what is not there yet
    has_ended: bool = False

    def answers(self, frame: Frame) -> Iterator[Frame]:
        """Yield what is said at once to a request."""
        clocks = {"id": frame.data.get("id"), "mono": time.monotonic(), "wall": time.time()}
        if frame.kind == "ping":
            yield Frame("pong", {**clocks, "disk_wait_s": 0.0})
        elif frame.kind == "facts":
            yield Frame("facts", {**json.loads(self.recording.facts), **clocks})
        elif frame.kind == "runs":
            listing = {"runs": [], "unreadable": 0, "now": time.time()}
            yield Frame("runs", {"id": frame.data["id"], **listing})
        elif frame.kind == "start":
            yield Frame("following", {"id": frame.data["id"]})
            self.logs = {"events": timed(self.recording.began), "rank": b"here\n"}
            yield from self.unread()
        elif frame.kind == "read":
            self.waiting.append(frame)
            yield from self.unread()

    def unread(self) -> Iterator[Frame]:
        """Yield what readers wait for, and is there."""
        waiting, self.waiting = self.waiting, []
        for frame in waiting:
            source, stream = frame.data["source"], frame.data["stream"]
            is_output = source.startswith("rank_") and stream == "out"
            log = self.logs.get("rank" if is_output else source, b"")
            offset = int(frame.data["offset"])
            data = log[offset : offset + int(frame.data["n"])]
            if not data and not self.has_ended:
                self.waiting.append(frame)
                continue
            place = {"id": frame.data["id"], "offset": offset, "eof": not data, "error": ""}
            yield Frame("data", place, data)

    def end(self) -> Iterator[Frame]:
        """Have the ranks end, and yield what readers wait for."""
        self.logs["events"] += timed(self.recording.ended)
        self.has_ended = True
        yield from self.unread()


async def serve_host(
    process: asyncssh.SSHServerProcess[bytes], recording: Recording, seconds: float
) -> None:
    """Be the agent at the other end of a channel."""
    found = BOOT_WORDS.search(process.command or "")
    if found is None:
        process.exit(127)
        return
    run_id, node = found.groups()
    address = process.get_extra_info("sockname")[0]
    host = Host(recording.told_by(node, address, run_id), seconds)
    await process.stdin.readline()  # the boot line

    def say(frames: Iterator[Frame]) -> None:
        for frame in frames:
            process.stdout.write(frame.pack())

    clocks = {"id": None, "mono": time.monotonic(), "wall": time.time()}
    process.stdout.write(MAGIC + Frame("hello", clocks).pack())
    decoder = FrameDecoder()
    while chunk := await process.stdin.read(1 << 16):
        for frame in decoder.feed(chunk):
            say(host.answers(frame))
            if frame.kind == "start":
                asyncio.get_running_loop().call_later(seconds, lambda: say(host.end()))
    process.exit(0)


async def serve(recording: Recording, port_file: Path, keys: list[str], seconds: float) -> None:
    """Serve until the end of standard input."""

    async def begin(process: asyncssh.SSHServerProcess[bytes]) -> None:
        try:
            await serve_host(process, recording, seconds)
        except (asyncssh.Error, OSError):  # the controller has gone
            process.close()

    server = await asyncssh.listen(
        *("0.0.0.0", 0),  # noqa: S104 (each host has an address of its own)
        server_host_keys=keys[:1],
        authorized_client_keys=keys[1],
        process_factory=begin,
        encoding=None,
        backlog=BACKLOG,
        login_timeout=120,
    )
    new = port_file.with_suffix(".new")
    new.write_text(str(server.get_port()))
    new.rename(port_file)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def main(argv: list[str]) -> None:
    """Serve as the command line says."""
    data: dict[str, Any] = json.loads(Path(argv[0]).read_text())
    asyncio.run(serve(Recording(**data), Path(argv[1]), argv[2:4], float(argv[4])))


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)
