"""Interpreter probe: path, version and torch of the task's Python, importing none."""

from __future__ import annotations

import json
import os
import re
from typing import Any, Dict, Sequence, Tuple

from runner.core.wire.facts import Interpreter
from runner.host.process import bounded_child
from runner.host.process.bounded_child import BoundedChild

MIN_VERSION = (3, 8)
_MARK = "\x02runner-python\x03"
_INSIDE_MARK = "\x02runner-inside\x03"

# For any Python from 2.7; the user's folder may have a `json.py`. Sites print banners around marks.
_PROBE_PROGRAM = """
import sys
sys.path[:] = filter(None, sys.path)
import json, os
answer = {"executable": sys.executable, "version": sys.version_info[:3], "torch": ""}
answer["python_path"] = os.environ.get("PYTHONPATH", "")
try:
    from importlib.util import find_spec
    spec = find_spec("torch")
    for folder in spec and spec.submodule_search_locations or ():
        with open(os.path.join(folder, "version.py")) as file:
            answer["torch"] = file.read()
except Exception:
    pass
answer["missing"] = []
for name in sys.argv[1:]:
    try:
        if find_spec(name) is None:
            answer["missing"].append(name)
    except Exception:
        pass
os.write(1, ("MARK" + json.dumps(answer) + "MARK").encode())
""".replace("MARK", '" "'.join(_MARK))  # in pieces: not in what prints its arguments

# What comes before that in a container. Its client may be killed, and leaves it: the alarm ends it.
_INSIDE_PROGRAM = """
import sys
sys.path[:] = filter(None, sys.path)
import json, os, re, signal
signal.alarm(LIMIT)
inside = {"gpus": len([name for name in os.listdir("/dev") if re.match("nvidia[0-9]+$", name)])}
inside["hostname"] = os.uname()[1]
try:
    disk = os.statvfs("/dev/shm")
    inside["shm_bytes"] = disk.f_blocks * disk.f_frsize
except OSError:
    pass
os.write(1, ("MARK" + json.dumps(inside)).encode())
""".replace("MARK", '" "'.join(_INSIDE_MARK))


def start(
    python: str, environ: Dict[str, str], folder: str, modules: Sequence[str], limit_s: float
) -> BoundedChild:
    """Probe `python` in `environ` and in `folder`, if that exists; look for `modules`."""
    return BoundedChild(lambda: _exec_probe(python, environ, folder, modules), limit_s)


def probe_inside(python: str, modules: Sequence[str], limit_s: int) -> Tuple[str, ...]:
    """Return the command that probes `python` from within a container; it ends by itself."""
    program = _INSIDE_PROGRAM.replace("LIMIT", str(limit_s)) + _PROBE_PROGRAM
    return (python, "-B", "-c", program, *modules)


def result(child: BoundedChild, python: str) -> Interpreter:
    report = child.report()
    if "error" in report:
        return Interpreter(error=report["error"])
    if child.timed_out:
        step = report.get("doing", f"starting {python}")
        return Interpreter(error=f"{step}: no answer within {child.limit_s:g} s")
    answer = child.output.decode(errors="replace").split(_MARK)
    if len(answer) < 3:
        code = child.code or 0
        exit_text = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        reason = f"{report.get('path', python)} {exit_text} without an answer"
        return Interpreter(error=": ".join([reason, *child.text.splitlines()[-1:]]))
    return parse_answer(json.loads(answer[-2]))


def inside_answer(child: BoundedChild) -> Dict[str, Any]:
    """Return what a probe found in its container, {} if it did not begin there."""
    _, _, text = child.text.partition(_INSIDE_MARK)
    found: Dict[str, Any] = json.JSONDecoder().raw_decode(text)[0] if text else {}
    return found


def parse_answer(answer: Dict[str, Any]) -> Interpreter:
    version = ".".join(map(str, answer["version"]))
    executable = answer["executable"] or ""
    if tuple(answer["version"]) < MIN_VERSION:
        oldest = ".".join(map(str, MIN_VERSION))
        return Interpreter(error=f"{executable} is Python {version}, older than {oldest}")
    text = answer["torch"]
    torch = _assigned_string("__version__", text)
    cuda = _assigned_string("cuda", text)
    return Interpreter(
        executable=executable,
        version=version,
        torch=torch,
        torch_cuda=cuda,
        python_path=answer.get("python_path", ""),
        missing=tuple(map(str, answer.get("missing", ()))),
    )


def _assigned_string(name: str, text: str) -> str:
    pattern = rf"^{name}\s*(?::[^=\n]*)?=\s*['\"]([^'\"\n]*)['\"]"
    match = re.search(pattern, text, re.MULTILINE)
    return match.group(1) if match else ""


def _exec_probe(python: str, environ: Dict[str, str], folder: str, modules: Sequence[str]) -> None:
    report = bounded_child.report_facts
    if folder:
        report(doing=f"entering {folder}")
        bounded_child.chdir_if_exists(folder)
    report(doing=f"looking for {python}")
    path, error = _locate(python, environ)
    if error:
        report(error=error)
        return
    report(doing=f"starting {path}", path=path)
    try:
        os.execve(path, [path, "-B", "-c", _PROBE_PROGRAM, *modules], environ)
    except OSError as failure:
        is_gone = isinstance(failure, FileNotFoundError)
        reason = "the interpreter it names is not there" if is_gone else failure.strerror
        report(error=f"{path} cannot be started: {reason}")


def _locate(python: str, environ: Dict[str, str]) -> Tuple[str, str]:
    """Return the path of `python` and "", or "" and why it cannot be started."""
    if "/" not in python:
        path = bounded_child.find_program(python, environ)
        return path, "" if path else f"no {python} on PATH ({environ.get('PATH', '')})"
    if not os.path.exists(python):
        return "", f"{python} is not there"
    if os.path.isdir(python):
        return "", f"{python} is a folder, not an interpreter"
    return (python, "") if os.access(python, os.X_OK) else ("", f"{python} is not executable")
