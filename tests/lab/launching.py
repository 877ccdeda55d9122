"""The controller as a user starts it: `python -m runner …` in a folder of theirs."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.lab import forkserver
from tests.lab.forkserver import RUNNER_ARGV, ForkedController
from tests.lab.waiting import PATIENCE, TimedOut, wait_until

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
RANK_SCRIPT = str(PROGRAMS / "rank.py")
TORCHLESS = str(PROGRAMS / "torchless")
"""A folder for PYTHONPATH with a stand-in for torchrun, which costs no import of torch."""

FAB = str(Path(sys.executable).with_name("fab"))
CLOSE_S = 10.0  # for a controller to pass on a stop
PLAIN_ENTRY = "task.entry=plain"
SECRET = "S3cr3t-of-the-launch"
USE_OF_SECRET = ("cluster.secrets=[TOKEN]", "notify=['echo told $TOKEN >&2; exit 7']")
"""Overrides by which the value of $TOKEN gets into what a run is told by, and says."""


@dataclass(frozen=True, repr=False)
class Result:
    code: int
    out: str
    err: str
    seconds: float
    folder: Path

    def __repr__(self) -> str:
        return (
            f"exit {self.code} after {self.seconds:.1f} s\n--- out\n{self.out}\n--- err\n{self.err}"
        )

    @property
    def result(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads((self.folder / "result.json").read_text())
        return data

    @property
    def events(self) -> list[dict[str, Any]]:
        return [
            json.loads(line) for line in (self.folder / "events.jsonl").read_text().splitlines()
        ]

    def log(self, node: str, rank: int, stream: str = "out") -> str:
        """What one rank wrote, as the controller has it."""
        path = self.folder / "logs" / node / f"rank_{rank}.{stream}"
        return path.read_text() if path.exists() else ""


class Controller:
    def __init__(self, argv: list[str], cwd: Path, env: Mapping[str, str]) -> None:
        self.cwd = cwd
        self.started_at = time.monotonic()
        self._out = tempfile.TemporaryFile("w+b")  # noqa: SIM115
        self._err = tempfile.TemporaryFile("w+b")  # noqa: SIM115
        output = (self._out.fileno(), self._err.fileno())
        self.process: subprocess.Popen[bytes] | ForkedController
        if argv[:3] == RUNNER_ARGV:
            self.process = forkserver.fork_controller(argv[3:], cwd, env, output)
        else:
            self.process = subprocess.Popen(
                argv,
                cwd=cwd,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output[0],
                stderr=output[1],
                start_new_session=True,
            )

    @property
    def out(self) -> str:
        return _read_text(self._out)

    @property
    def err(self) -> str:
        return _read_text(self._err)

    @property
    def run_id(self) -> str:
        found = re.search(r"^run ([a-z0-9-]+):", self.err, re.MULTILINE)
        return found[1] if found else ""

    @property
    def folder(self) -> Path:
        return self.cwd / "runs" / self.run_id

    def send(self, signum: int = signal.SIGINT) -> None:
        self.process.send_signal(signum)

    def until(self, condition: Callable[[], object], what: str, seconds: float = 60) -> None:
        """Wait for a condition, with a deadline that shows what was printed."""

        def met() -> bool:
            ended_badly = self.process.poll() not in (None, 0)
            if not condition():
                assert not ended_badly, f"it ended before {what}:\n{self._printed()}"
                return False
            return True

        wait_until(met, what, seconds, detail=self._printed)

    def until_joined(self, members: int = 1) -> None:
        """Wait until so many supervisors have said that they are in touch with the hub."""
        self.until(lambda: self.joined == members, "the members to know the hub")

    @property
    def joined(self) -> int:
        path = self.folder / "events.jsonl"
        return path.read_text().count('"kind":"hub_joined"') if path.exists() else 0

    def until_printed(self, text: str, times: int = 1, seconds: float = 60) -> None:
        """Wait until a text stands in the ranks' output so often."""
        self.until(lambda: self.out.count(text) >= times, f"{times} × {text!r}", seconds)

    def wait(self, seconds: float = 90) -> Result:
        """Return how it ended; it is killed when that takes longer than `seconds` × PATIENCE."""
        try:
            code = self.process.wait(seconds * PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise TimedOut(f"no end in {seconds * PATIENCE:g} s:\n{self._printed()}") from None
        return Result(code, self.out, self.err, time.monotonic() - self.started_at, self.folder)

    def _printed(self) -> str:
        return f"{self.out[-4000:]}\n{self.err[-8000:]}"

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """End it if it still runs, with its run, which would outlive it; let go of its output."""
        self.send(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(CLOSE_S)
        self.kill()
        self._out.close()
        self._err.close()


class Launcher:
    """Starts controllers in one user's folder, with that user's own conf/."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "conf"
        self.entry = "plain"  # for `rank_overrides`; "torchrun" has each host import torch
        (self.conf / "cluster").mkdir(parents=True)
        home = folder.parent / "home"
        home.mkdir(exist_ok=True)
        self.env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("RUNNER_", "HYDRA_"))},
            "PYTHONPATH": str(ROOT),
            "HOME": str(home),
        }
        self._controllers: list[Controller] = []

    def start(self, *overrides: str, env: Mapping[str, str] | None = None) -> Controller:
        controller = Controller(
            [*RUNNER_ARGV, *overrides], self.folder, {**self.env, **(env or {})}
        )
        self._controllers.append(controller)
        return controller

    def __call__(
        self, *overrides: str, seconds: float = 90, env: Mapping[str, str] | None = None
    ) -> Result:
        return self.start(*overrides, env=env).wait(seconds)

    def succeed(self, *overrides: str, **more: Any) -> Result:
        """Return what came of a launch or a verb, which must end well."""
        done = self(*overrides, **more)
        assert done.code == 0, done
        return done

    def run_ranks(self, words: str, *overrides: str, **more: Any) -> Result:
        """Run ranks without torch (`programs/rank.py`) that do `words`, one after the other."""
        return self(*self.rank_overrides(*words.split()), *overrides, **more)

    def rank_overrides(self, *words: str) -> list[str]:
        """The overrides for ranks without torch, started as `entry` says."""
        return rank_overrides(*words, entry=self.entry)

    def fab(self, *words: str) -> Result:
        with contextlib.closing(Controller([FAB, *words], self.folder, self.env)) as controller:
            return controller.wait(60)

    def in_folder(self, folder: Path) -> Launcher:
        other = copy.copy(self)
        other.folder = folder
        return other

    def at_another_machine(self, name: str) -> Launcher:
        """The same user at a machine that has launched nothing, with no YAML in their folder."""
        other = self.in_folder(self.folder.parent / name)
        other.folder.mkdir()
        other.env = {**self.env, "XDG_STATE_HOME": str(other.folder / "state")}
        return other

    def close(self) -> None:
        for controller in self._controllers:
            controller.close()


def rank_overrides(*words: str, entry: str = "torchrun") -> list[str]:
    quoted = ",".join(json.dumps(word) for word in words)
    ranks = [f"task.script={RANK_SCRIPT}", f"task.args_after=[{quoted}]"]
    return ranks if entry == "torchrun" else [*ranks, f"task.entry={entry}"]


def program(name: str, *args: str) -> list[str]:
    """The overrides for one of the tests' programs with these arguments."""
    script = f"task.script={PROGRAMS / name}"
    return [script, f"task.args_after={json.dumps(args)}"]


def _read_text(file: IO[bytes]) -> str:
    return os.pread(file.fileno(), 1 << 30, 0).decode(errors="replace")
