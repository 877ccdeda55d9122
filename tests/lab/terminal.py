"""A terminal that somebody types into."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.lab.waiting import PATIENCE, wait_until


class Terminal:
    def __init__(
        self,
        argv: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        lines: int = 24,
        columns: int = 80,
    ) -> None:
        self._ours, self._theirs = pty.openpty()
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("4H", lines, columns, 0, 0))
        self._modes = termios.tcgetattr(self._theirs)
        self.shown = ""
        self.process = subprocess.Popen(
            argv,
            cwd=cwd,
            env={"TERM": "xterm", **env},
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 - for Ctrl-C
        )

    def read(self) -> str:
        """Take in what is there to read; return all that was written."""
        while select.select([self._ours], [], [], 0.05)[0]:
            self.shown += os.read(self._ours, 65536).decode(errors="replace")
        return self.shown

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def until(self, *patterns: str, start: int = 0) -> str:
        """Wait until these are shown, after `start` characters; return what is shown there."""

        def are_shown() -> bool:
            shown = self.read()[start:]
            return all(re.search(pattern, shown) for pattern in patterns)

        wait_until(are_shown, f"{patterns}", 40, detail=lambda: self.shown[start:][-4000:])
        return self.shown[start:]

    def end(self) -> int:
        """Return the exit code, once it has ended and all is read."""
        wait_until(lambda: (self.read(), self.process.poll())[1] is not None, "its end", 30)
        self.read()
        return self.process.wait(PATIENCE)

    @property
    def is_as_it_was(self) -> bool:
        return termios.tcgetattr(self._theirs) == self._modes

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._theirs)
        os.close(self._ours)
