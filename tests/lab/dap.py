"""A client of the Debug Adapter Protocol, as an editor is one."""

from __future__ import annotations

import itertools
import json
import socket
from pathlib import Path
from typing import Any

from tests.lab.waiting import PATIENCE


class DebugClient:
    """Attached to a program that waits for it at the other end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.settimeout(60 * PATIENCE)
        self._stream = self._socket.makefile("rb")
        self._numbers = itertools.count(1)
        self._events: list[dict[str, Any]] = []

    def attach(self, folder: Path, breakpoints: dict[str, list[int]]) -> None:
        """Attach, set the breakpoints of these files of a folder here, and have the program run."""
        self.request("initialize", adapterID="test", pathFormat="path", linesStartAt1=True)
        mapping = {"localRoot": str(folder), "remoteRoot": "."}
        number = self._send("attach", {"justMyCode": False, "pathMappings": [mapping]})
        self.event("initialized")
        for name, lines in breakpoints.items():
            source, points = {"path": str(folder / name)}, [{"line": line} for line in lines]
            self.request("setBreakpoints", source=source, breakpoints=points)
        self.request("configurationDone")
        self._response(number)

    def request(self, command: str, **arguments: Any) -> dict[str, Any]:
        """Ask, and return the body of the response."""
        return self._response(self._send(command, arguments))

    def event(self, kind: str) -> dict[str, Any]:
        """Return the next event of a kind."""
        while True:
            for event in self._events:
                if event["event"] == kind:
                    self._events.remove(event)
                    return dict(event.get("body", {}))
            self._events.append(self._receive())

    def evaluate(self, expression: str, thread: int) -> str:
        """Return an expression's value where a thread has stopped."""
        frame = self.request("stackTrace", threadId=thread)["stackFrames"][0]
        done = self.request("evaluate", expression=expression, frameId=frame["id"])
        return str(done["result"])

    def close(self) -> None:
        """Leave."""
        self._stream.close()
        self._socket.close()

    def _send(self, command: str, arguments: dict[str, Any]) -> int:
        number = next(self._numbers)
        message = {"seq": number, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(message).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        return number

    def _response(self, number: int) -> dict[str, Any]:
        while (message := self._receive()).get("request_seq") != number:
            self._events.append(message)
        assert message["success"], message
        return dict(message.get("body") or {})

    def _receive(self) -> dict[str, Any]:
        while True:
            length = 0
            while line := self._stream.readline().strip():
                name, _, value = line.partition(b":")
                length = int(value) if name == b"Content-Length" else length
            assert length, "the debugger has left"
            message: dict[str, Any] = json.loads(self._stream.read(length))
            if message["type"] != "request":
                return message
