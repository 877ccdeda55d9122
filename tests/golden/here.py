"""A user's folder of YAML, and the command line typed in it, in this process."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from runner.cli.main import main
from runner.core.launch_request import LaunchRequest

CONF = Path(__file__).parents[2] / "conf"
MINE = {
    "conf/task/mine.yaml": "defaults: [base]\nscript: train.py\nargs: {lr: 0.1}\n",
    "conf/cluster/pair.yaml": (
        "defaults: [base]\nnodes:\n  gpu1: {host: 10.0.0.1}\n  gpu[02-04]: {gpus: 8}\n"
    ),
}


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@dataclass
class Said:
    code: int
    runs: list[LaunchRequest]
    out: str
    err: str

    @property
    def run(self) -> LaunchRequest:
        assert self.code == 0, self.err
        (run,) = self.runs
        return run


class Here:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self._capsys = capsys
        self.written = {folder}

    def write(self, files: dict[str, str]) -> None:
        write(self.folder, files)
        for name in files:
            path = self.folder / name
            self.written |= {path, *path.parents}

    def __call__(self, *words: str, job: Callable[[LaunchRequest], int] = lambda _: 0) -> Said:
        """Do `python -m runner WORDS`, with `job` in place of a launch."""
        runs: list[LaunchRequest] = []

        def note(composed: LaunchRequest) -> int:
            runs.append(composed)
            return job(composed)

        with pytest.MonkeyPatch.context() as patch:
            launching = "runner.verbs.launching"
            patch.setattr(f"{launching}.launch_session.run", note)
            patch.setattr(f"{launching}.sweep.run", lambda composed, _: note(composed))
            patch.setattr(f"{launching}.sweep.open_code_source", lambda _: None)
            code = main(words)
        captured = self._capsys.readouterr()
        return Said(code, runs, captured.out, captured.err)

    def replay(self, page: str, answer: Callable[[list[str]], str]) -> str:
        """Return a page of typed lines anew, with what is said of each of them now.

        To add a case write `$ runner WORDS` on it, or `file NAME` and lines that begin with `  | `:
        these files are there until the next ones are on the page.
        """
        told: list[str] = []
        files: dict[str, str] = {}
        is_typed = True
        for line in page.splitlines():
            if line.startswith("$ runner"):
                self.write({} if is_typed else files)
                is_typed = True
                told.append(f"{line}\n{answer(shlex.split(line)[2:])}")
            elif line.startswith("file "):
                for name in files if is_typed else ():
                    (self.folder / name).unlink()
                files = {} if is_typed else files
                is_typed = False
                files[line.removeprefix("file ")] = ""
                told.append(line)
            elif line.startswith("  | ") and not is_typed:
                files[[*files][-1]] += f"{line[4:]}\n"
                told.append(line)
            elif line.startswith("== "):
                told.append(line)
        text = "\n".join(told).rstrip("\n") + "\n"
        return text.replace(str(self.folder), "HERE").replace(str(CONF), "SHIPPED")
