"""Preparation: hosts make the environment of a task from lines and files, which is shown live."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.control.code.source import CodeSource
from runner.control.remote_exec import RemoteCommand
from runner.control.run.hosts import HostPool
from runner.core.errors import SIGNAL_EXIT_BASE, Interrupted, NotReady, Problem
from runner.core.planning.readiness import CONDA_HINT
from runner.core.spec import Node, Spec
from runner.core.wire.facts import PREPARED, Facts, Prepare
from runner.core.wire.files import compile_globs, step_globs
from runner.core.wire.paths import NO_RANK

MAX_BYTES = 16 << 20  # of all files that the lines read: a lock, and what is small
SHOWN_LINES = 8  # of what was printed last, in a message

CAUSES = {
    r"\buv: command not found": (
        "install uv there (docs.astral.sh/uv), and have cluster.setup put its folder on the PATH:\n"
        "setup: ['export PATH=\"$HOME/.local/bin:$PATH\"']"
    ),
    r"Unable to find lockfile|No `pyproject.toml` found": (
        "uv takes pyproject.toml and uv.lock from where you start the run: `uv lock`, `git add`"
    ),
    r"needs to be updated|No solution found when resolving dependencies": (
        "uv.lock is out of date, pyproject.toml asks for something else: run `uv lock` here"
    ),
    r"Distribution not found at: file:": (
        "name the folder of that dependency, too, such as cluster.prepare_inputs=[libs/mine]"
    ),
    "conda init": CONDA_HINT,
    "did not end in time": "set cluster.prepare_timeout_s to more seconds, if the lines need them",
    r"Failed to fetch|(failure in|Could not resolve).*(name|host)|Network is unreachable": (
        "this host does not reach the index of packages: in cluster.setup, export HTTPS_PROXY, or\n"
        "the address of one that it reaches (UV_DEFAULT_INDEX, PIP_INDEX_URL)"
    ),
}
"""What the lines print, and what to do about it; the first that fits counts."""


class Preparation:
    """The environment of one launch, of which hosts are told before they are asked to make it."""

    def __init__(self, spec: Spec, source: CodeSource) -> None:
        self._cluster = spec.cluster
        self._source = source

    @functools.cached_property
    def _files(self) -> dict[str, bytes]:
        return _read(self._source, self._cluster.prepare_inputs)

    def request(self, node: Node) -> Prepare | None:
        """Return what a host is told with the question for facts, in the thread of its login."""
        if not self._cluster.prepare:
            return None
        digests = [(path, hashlib.sha256(text).hexdigest()) for path, text in self._files.items()]
        return Prepare(
            lines=self._cluster.prepare,
            python="python3" if node.python.startswith(PREPARED) else node.python,
            digest=hashlib.sha256(json.dumps(digests).encode()).hexdigest(),
        )

    def run(self, pool: HostPool, facts: Mapping[str, Facts]) -> bool:
        """Have hosts make what they lack; return whether any did, or raise NotReady."""
        if not any(each.awaits_environment for each in facts.values()):
            return False
        pool.console.phase("making the environment")
        tails: dict[str, bytes] = defaultdict(bytes)

        def show(node: str, stream: str, data: bytes) -> None:
            tails[node] = (tails[node] + data)[-4000:]
            pool.console.rank_output(node, NO_RANK, stream, data)

        console = pool.console
        command = RemoteCommand(pool.sessions, pool.inbox, pool.spec.lost_s, console.node_status)
        command.kind = "prepare"
        command.data = {
            "files": [(path, len(text)) for path, text in self._files.items()],
            "secrets": {name: secret.reveal() for name, secret in pool.spec.secrets.items()},
        }
        command.payload = b"".join(self._files.values())
        command.run((), self._cluster.prepare_timeout_s, show)
        if signum := command.received_signal:
            raise Interrupted(SIGNAL_EXIT_BASE + signum, "interrupted; nothing was started")
        problems = []
        for name, result in command.results.items():
            if result.exit_code or result.problem:
                printed = tails[name].decode(errors="replace")
                hints = [f"| {line}" for line in printed.splitlines()[-SHOWN_LINES:]]
                how = result.problem or f"ended with {result.exit_code}"
                told = f"{printed}\n{how}"
                hints += [hint for text, hint in CAUSES.items() if re.search(text, told)][:1]
                problems.append(Problem(name, f"cluster.prepare {how}", "\n".join(hints)))
        if problems:
            raise NotReady(problems)
        return True


def _read(source: CodeSource, patterns: Sequence[str]) -> dict[str, bytes]:
    """Return the files that lines read, by path: of the code that is pushed, else from here."""
    files: dict[str, bytes] = {}
    if release := source.release(["this machine"]):
        below = f"{source.code.subdirectory}/".lstrip("/")
        state = compile_globs(patterns)
        for file in release.manifest.files:
            path = file.path.removeprefix(below)
            is_below = file.path.startswith(below)
            if is_below and () in functools.reduce(step_globs, path.split("/"), state):
                files[path] = b"".join(release.read(file))
    else:
        here = Path.cwd()
        found = [entry for pattern in patterns for entry in here.glob(pattern)]
        for entry in (each for top in found for each in (top, *top.rglob("*"))):
            if entry.is_file() and "__pycache__" not in entry.parts:
                files[entry.relative_to(here).as_posix()] = entry.read_bytes()
    size = sum(map(len, files.values()))
    if size > MAX_BYTES:
        message = f"{size >> 20} MiB, more than {MAX_BYTES >> 20}: name what the lines read, alone"
        raise NotReady([Problem("cluster.prepare_inputs", message)])
    return dict(sorted(files.items()))
