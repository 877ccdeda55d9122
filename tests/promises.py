"""The promises of the design, and the tests that hold them, as their marks and docstrings say."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
ROOT = TESTS.parent

TEXT = """\
1. Training never waits for us
Ranks write to files on their own host; agents read those files. A slow console, a full pipe or
a lost connection never blocks or kills a rank, and no line is torn or mixed with another
rank's.

2. Nothing survives a stop
A stop ends with a proof: every process of the run is gone on every reachable host, also
children in new sessions, also those that ignore SIGTERM; hosts that could not be asked are
named. It goes by run id, never by name.

3. A host needs sshd, Python 3.8 or later and torch
No root, no daemon left behind after a run, no inbound port but torch's and, on the master, one
of ours for fail-fast; where hosts can serve each other a big release, one more while it is pushed.

4. Nothing waits for ever
Each remote step has a deadline; a dead process is known at once, a silent host (power, cable)
after `lost_s`.

5. What ran is on record before it starts
Resolved config, plan, code identity, versions; then events and result, written atomically.

6. No byte of a log is lost or doubled
This holds across a cut connection and a re-attach.

7. Secrets stay off command lines, logs and records
Host keys are verified; agent forwarding is off; nothing is unpickled.

8. A message names its subject and the way on
It names the host, the rank, the config key to change, and the legal choices.

9. The controller is light
It never imports torch; `dry_run` on this machine answers in well under a second.

10. A run is what its own record says
A verb about a run needs nothing of today's shell, YAML or folder; whatever ends or removes
something names it first.

11. A slow disk is not a dead host
Heartbeats never wait for a file.

12. A host cannot harm the controller or another run
What it says is checked; no path and no command is built from it.

13. A host lies
Its shell may print banners, its clock may be off, its home may be full, its python may be
elsewhere, its DNS may take 30 s, its Python may sit on slow NFS, /proc may hide other users'
processes: the protocol and the checks expect that.
"""
PROMISES = {
    int(number): (title, meaning)
    for number, title, meaning in re.findall(r"^(\d+)\. (.+)\n((?:.+\n)+)", TEXT, re.MULTILINE)
}
"""By number: the promise, and what it means."""


@dataclass(frozen=True)
class PromiseTest:
    """One test function.

    Attributes:
        path: Its file, from the root of the repository.
        name: Its name.
        doc: The first line of its docstring.
        promises: The numbers of the promises it holds.
        pages: The pages of the documentation it tries.
        all_only: Only `make test-all` runs it.
    """

    path: str
    name: str
    doc: str
    promises: tuple[int, ...]
    pages: tuple[str, ...]
    all_only: bool


def marked_tests() -> Iterator[PromiseTest]:
    """Yield every test function that has such a mark, or whose module has."""
    for path in sorted(TESTS.rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        of_module = [
            call
            for node in tree.body
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
            for call in (node.value.elts if isinstance(node.value, ast.List) else [node.value])
        ]
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                marks = [*of_module, *node.decorator_list]
                test = PromiseTest(
                    path.relative_to(ROOT).as_posix(),
                    node.name,
                    (ast.get_docstring(node) or "").partition("\n")[0],
                    tuple(_words(marks, "promise")),
                    tuple(_words(marks, "documents")),
                    any(ast.unparse(mark) == "pytest.mark.all" for mark in marks),
                )
                if test.promises or test.pages:
                    yield test


def _words(marks: list[ast.expr], name: str) -> Iterator[Any]:
    for mark in marks:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == f"pytest.mark.{name}":
            yield from (ast.literal_eval(word) for word in mark.args)
