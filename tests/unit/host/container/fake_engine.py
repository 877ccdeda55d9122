"""A program that keeps containers as an engine does, by their ids: the files of a folder."""

from __future__ import annotations

from pathlib import Path

from runner.core.model.container import Container

PROGRAM = """#!/bin/sh
echo "a warning" >&2
cd {folder} || exit
verb=$1; shift
echo "$verb" "$@" >> {log}
case $verb in
  find) ls ;;
  kill) ls "$@" >/dev/null ;;
  remove) rm -f "$@" ;;
  reclaim) {reclaim} ;;
esac
"""


class FakeEngine:
    """Its containers, and what it was asked."""

    def __init__(self, tmp_path: Path, reclaim: str = "") -> None:
        self._folder, self._log = tmp_path / "containers", tmp_path / "engine.log"
        self._folder.mkdir()
        program = tmp_path / "engine"
        words = {"folder": self._folder, "log": self._log, "reclaim": reclaim}
        program.write_text(PROGRAM.format(**words))
        program.chmod(0o700)
        self.container = Container(
            engine="docker",
            start=(),
            name="runner-now",
            create=(str(program), "create"),
            kill=(str(program), "kill"),
            remove=(str(program), "remove"),
            find=(str(program), "find"),
            reclaim=(str(program), "reclaim") if reclaim else (),
        )

    def add(self, *ids: str) -> None:
        """Have these containers."""
        for each in ids:
            (self._folder / each).touch()

    def ids(self) -> list[str]:
        """Return its containers."""
        return sorted(path.name for path in self._folder.iterdir())

    def asked(self) -> list[str]:
        """Return the commands it was given."""
        return self._log.read_text().splitlines() if self._log.exists() else []
