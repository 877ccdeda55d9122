"""Container probe: whether an engine has the image of a run, and what is in a container of it.

The engine is asked for the image, which may be pulled, and then to run a short program in it as it
will run ranks: what it refuses then, it says itself.
"""

from __future__ import annotations

import math
import os
import re
from dataclasses import replace
from typing import Dict, Tuple

from runner.core.wire.codec import decode
from runner.core.wire.container import Container, ContainerFacts, is_of_engine
from runner.core.wire.facts import Facts, FactsRequest, Interpreter
from runner.host.container import last_line, run
from runner.host.facts import interpreter
from runner.host.gpu import query
from runner.host.process import bounded_child
from runner.host.process.bounded_child import BoundedChild

MISSING = re.compile(r"no such (image|object)|image not known", re.IGNORECASE)
LATE_START_S = 1  # after this time a container shows up whose client was killed as it asked for it
DISCARD_TIMEOUT_S = 60.0


class Trial:
    """A new container for a short program; `child` runs it."""

    def __init__(self, request: FactsRequest, facts: Facts, environ: Dict[str, str]) -> None:
        assert request.container is not None  # noqa: S101 (for mypy)
        self._container = replace(
            request.container,
            uid=facts.uid,
            gid=facts.gid,
            groups=facts.groups,
            gpus=request.container.gpus if query.has_driver() else (),
        )
        self._request = request
        self._environ = environ
        self._name = f"runner-probe-{os.urandom(8).hex()}"
        self.child = BoundedChild(self._ask, request.container_limit_s)

    def result(self) -> Tuple[ContainerFacts, Interpreter]:
        child = self.child
        inside = interpreter.inside_answer(child)
        facts = decode(ContainerFacts, {**child.report(), **inside})
        if inside:
            return facts, interpreter.result(child, self._request.python)
        late = f"no answer within {child.limit_s:g} s" if child.timed_out else ""
        said = facts.problem or late or last_line(child.text) or f"exit code {child.code}"
        return replace(facts, problem=said), Interpreter(error="it was not tried")

    def end(self) -> None:
        """Kill the client, and have what it may have left removed after us: it has a moment."""
        self.child.kill()
        is_open = self.child.report().get("step") == "start" and self._container.engine
        if is_open and not interpreter.inside_answer(self.child):
            words = (*self._container.remove, self._name)
            argv = ["/bin/sh", "-c", f'sleep {LATE_START_S}; exec "$@"', "sh", *words]
            BoundedChild(lambda: os.execve(argv[0], argv, self._environ), DISCARD_TIMEOUT_S)

    def _ask(self) -> None:
        """Ask until something is missing; print what the program in the container says."""
        report = bounded_child.report_facts
        container = self._container
        request = self._request
        environ = self._environ
        report(step="find", env={name: environ[name] for name in environ if is_of_engine(name)})
        name = container.program[0]
        program = name if "/" in name else bounded_child.find_program(name, environ)
        if not os.access(program, os.X_OK) or os.path.isdir(program):
            report(problem=f"there is no {name}" + ("" if "/" in name else " on its PATH"))
            return
        report(program=program)
        if container.engine and not self._has_image(container):
            return
        report(step="start")
        python_path = {"PYTHONPATH": request.python_path} if request.python_path else {}
        words = container.prefix(name=self._name, cwd="/", env=python_path)
        environ = {key: environ[key] for key in environ if key != "PYTHONPATH"}
        if not container.engine:
            environ.update(python_path)
        limit_s = math.ceil(request.container_start_s)
        argv = [*words, *interpreter.probe_inside(request.python, request.modules, limit_s)]
        code, said = run(argv, environ, limit_s)
        os.write(1, said.encode())
        if code:
            report(problem=last_line(said))

    def _has_image(self, container: Container) -> bool:
        """Return whether the image is there, perhaps pulled now; else report the problem."""
        report = bounded_child.report_facts
        request = self._request
        look = (*container.program, "image", "inspect", "--format", "{{.Id}}", container.image)
        report(step="ask")
        code, said = run(look, self._environ, request.tool_timeout_s)
        if code and not MISSING.search(said):
            report(problem=last_line(said))
            return False
        if code and request.pull == "never":
            report(step="image", problem=last_line(said))
            return False
        if code or request.pull == "always":
            report(step="pull")
            pull = (*container.program, "pull", "--quiet", container.image)
            code, said = run(pull, self._environ, request.pull_timeout_s)
        if code:
            report(problem=last_line(said))
        return not code
