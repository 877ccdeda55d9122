"""Container probe: whether an engine answers, and has the image of a run; it may pull it."""

from __future__ import annotations

import os
import subprocess
from typing import Any, Dict, Sequence, Tuple

from runner.core.codec import decode, encode
from runner.core.model.container import (
    ENGINE_ENV,
    CommandAnswer,
    ContainerFacts,
    ContainerProbe,
)
from runner.host.process import bounded_child
from runner.host.process.bounded_child import BoundedChild

MAX_OUTPUT = 2000  # characters, from the end


def start(
    probe: ContainerProbe, environ: Dict[str, str], mounts: Sequence[str], limit_s: float
) -> BoundedChild:
    """Ask an engine; each command has `limit_s` seconds, a pull more."""
    whole_s = probe.limit_s(limit_s)
    return BoundedChild(lambda: _ask_engine(probe, environ, mounts, limit_s), whole_s)


def result(child: BoundedChild) -> ContainerFacts:
    """Return what it answered."""
    report = {"program": "", **child.report()}
    return decode(ContainerFacts, report)


def _ask_engine(
    probe: ContainerProbe, environ: Dict[str, str], mounts: Sequence[str], limit_s: float
) -> None:
    """Report each answer, as it comes."""

    def ask(name: str, argv: Tuple[str, ...], seconds: float) -> CommandAnswer:
        answer = _run(argv, environ, seconds)
        bounded_child.report_facts(**{name: encode(answer)})
        return answer

    missing = [path for path in mounts if not os.path.exists(os.path.expanduser(path))]
    env = {name: environ[name] for name in ENGINE_ENV if name in environ}
    bounded_child.report_facts(mounts_missing=missing, env=env)
    name = probe.engine[0]
    program = name if "/" in name else bounded_child.find_program(name, environ)
    if not os.access(program, os.X_OK):
        return
    bounded_child.report_facts(program=program)
    if not ask("engine", probe.engine, limit_s).ok:
        return
    is_there = ask("image", probe.image, limit_s).ok
    if probe.pull and (probe.pull_always or not is_there):
        ask("pull", probe.pull, probe.pull_timeout_s)
        ask("image", probe.image, limit_s)


def _run(argv: Sequence[str], environ: Dict[str, str], limit_s: float) -> CommandAnswer:
    options: Dict[str, Any] = {"env": environ, "stdin": subprocess.DEVNULL, "timeout": limit_s}
    pipe, both = subprocess.PIPE, subprocess.STDOUT
    try:
        done = subprocess.run(argv, stdout=pipe, stderr=both, check=False, **options)
    except subprocess.TimeoutExpired:
        return CommandAnswer(-1)
    except OSError as error:
        return CommandAnswer(127, error.strerror or str(error))
    return CommandAnswer(done.returncode, done.stdout.decode(errors="replace")[-MAX_OUTPUT:])
