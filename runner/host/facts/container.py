"""Container probe: whether an engine answers, and has the image of a run; it may pull it."""

from __future__ import annotations

import os
import subprocess
from typing import Any, Dict, Sequence, Tuple

from runner.core.codec import decode, encode
from runner.core.model.container import (
    ENGINE_ENV,
    TIMED_OUT,
    CommandAnswer,
    ContainerFacts,
    ContainerProbe,
)
from runner.core.model.facts import Facts
from runner.host.process import bounded_child
from runner.host.process.bounded_child import BoundedChild

MAX_OUTPUT = 2000  # characters, from the end
LATE_START_S = 1  # after this time a container shows up whose client was killed as it asked for it
DISCARD_TIMEOUT_S = 60.0


def start(
    probe: ContainerProbe, environ: Dict[str, str], mounts: Sequence[str], limit_s: float
) -> BoundedChild:
    """Ask an engine; each command has `limit_s` seconds, a pull more."""
    asked = _Engine(probe, environ, limit_s)
    return BoundedChild(lambda: asked.ask_all(mounts), probe.limit_s(limit_s))


def result(child: BoundedChild) -> ContainerFacts:
    """Return what it answered."""
    report = {"program": "", **child.report()}
    return decode(ContainerFacts, report)


class Trial:
    """A new container for a short program, as the user of the login; see `end`."""

    def __init__(self, probe: ContainerProbe, facts: Facts, environ: Dict[str, str]) -> None:
        self._probe = probe
        self._facts = facts
        self._environ = environ
        self._name = f"runner-probe-{os.urandom(8).hex()}"

    def argv(self, *, has_gpus: bool) -> Tuple[str, ...]:
        """Return the command that runs the words after it there."""
        probe = self._probe
        ids = {"uid": self._facts.uid, "gid": self._facts.gid}
        options = [word.format(name=self._name) for word in probe.name]
        options += [word.format(**ids) for word in probe.user]
        options += [word.format(gid=gid) for gid in self._facts.groups for word in probe.group]
        options += probe.gpus if has_gpus else ()
        program, verb, *others = probe.run
        return (program, verb, *options, *others)

    def end(self, child: BoundedChild) -> None:
        """Kill the client, and have what it may have left removed after us: it has a moment."""
        has_ended = child.code is not None and not child.timed_out
        child.kill()
        if self._probe.discard and not has_ended:
            words = [word.format(name=self._name) for word in self._probe.discard]
            argv = ["/bin/sh", "-c", f'sleep {LATE_START_S}; exec "$@"', "sh", *words]
            BoundedChild(lambda: os.execve(argv[0], argv, self._environ), DISCARD_TIMEOUT_S)


class _Engine:
    """The engine as a child asks it, which reports each answer as it comes."""

    def __init__(self, probe: ContainerProbe, environ: Dict[str, str], limit_s: float) -> None:
        self._probe = probe
        self._environ = environ
        self._limit_s = limit_s

    def ask_all(self, mounts: Sequence[str]) -> None:
        """Ask until something is missing."""
        report = bounded_child.report_facts
        probe = self._probe
        env = {name: self._environ[name] for name in ENGINE_ENV if name in self._environ}
        report(mounts_missing=[path for path in mounts if not os.path.exists(path)], env=env)
        name = probe.engine[0]
        program = name if "/" in name else bounded_child.find_program(name, self._environ)
        if not os.access(program, os.X_OK) or os.path.isdir(program):
            return
        report(program=program)
        if probe.endpoint:
            endpoint = self._ask("endpoint", probe.endpoint)
            if ContainerFacts(endpoint=endpoint).is_elsewhere:
                return
            if endpoint.code == TIMED_OUT:  # some clients ask their daemon even for that
                report(engine=encode(endpoint))
                return
        if not self._ask("engine", probe.engine).ok:
            return
        is_there = self._ask("image", probe.image).ok
        if probe.pull and (probe.pull_always or not is_there):
            self._ask("pull", probe.pull, probe.pull_timeout_s)
            self._ask("image", probe.image)

    def _ask(self, name: str, argv: Tuple[str, ...], limit_s: float = 0) -> CommandAnswer:
        answer = _run(argv, self._environ, limit_s or self._limit_s)
        bounded_child.report_facts(**{name: encode(answer)})
        return answer


def _run(argv: Sequence[str], environ: Dict[str, str], limit_s: float) -> CommandAnswer:
    """Run a command; clients also warn on standard error, so an answer has none of that."""
    options: Dict[str, Any] = {"env": environ, "stdin": subprocess.DEVNULL, "timeout": limit_s}
    try:
        done = subprocess.run(argv, capture_output=True, check=False, **options)
    except subprocess.TimeoutExpired:
        return CommandAnswer(TIMED_OUT)
    except OSError as error:
        return CommandAnswer(127, error.strerror or str(error))
    output = done.stdout + done.stderr if done.returncode else done.stdout
    return CommandAnswer(done.returncode, output.decode(errors="replace")[-MAX_OUTPUT:])
