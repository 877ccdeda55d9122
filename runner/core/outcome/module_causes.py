"""Module causes: what the files of the project say about an import that failed."""

from __future__ import annotations

import difflib
import posixpath
import re
from typing import AbstractSet, Callable, Dict, NamedTuple, Optional, Set, Tuple

from runner.core.model.plan import Plan

_MISSING = re.compile(r"No module named '?(\w[\w.-]*)")


class ProjectFiles(NamedTuple):
    """The Python files of a run's project, by paths relative to the working folder of its ranks."""

    paths: AbstractSet[str]
    why_absent: Callable[[str], str]  # takes a path that ranks had not; "" if it is not here either


def explain_import(error: str, plan: Plan, files: ProjectFiles) -> Optional[Tuple[str, str]]:
    """Return what a failed import means and what to do about it, None if no file tells."""
    node = plan.nodes[0]
    words = node.command[: len(node.command) - node.arg_count]
    target = words[-1]
    is_module = "-m" in words[-3:-1]
    python_path = [path for path in node.env.get("PYTHONPATH", "").split(":") if path]
    path_key = "task.env.PYTHONPATH=" + "".join(f"{path}:" for path in python_path)
    if "attempted relative import" in error:
        return _explain_relative(target, files.paths, path_key)
    missing = _MISSING.findall(error)[-1]
    is_own = is_module and f"{target}.".startswith(f"{missing}.")
    name = target if is_own else missing
    folder = "." if is_module else posixpath.dirname(target) or "."
    searched = {folder, *map(posixpath.normpath, python_path)}
    modules = importable(files.paths)
    homes = modules.get(name, set())
    if homes and searched.isdisjoint(homes):
        home = min(homes, key=len)
        return f"{name} is in {home}/, where Python does not look", f"{path_key}{home}"
    for home in sorted({*searched, "src"}):
        path = posixpath.normpath(posixpath.join(home, name.replace(".", "/")))
        for absent in (f"{path}.py", f"{path}/__init__.py"):
            reason = files.why_absent(absent)
            if reason:
                remedy = f"correct that rule, or, if it is git's, `git add -f {absent}`"
                return f"{absent} was not pushed: {reason}", remedy
    tops = modules.get(name.partition(".")[0], set())
    if homes or not (is_own or tops):  # it is a library's, or fails for another reason
        return None
    names = [each for each in sorted(modules) if not modules[each].isdisjoint(searched | tops)]
    for near in difflib.get_close_matches(name, names, n=1):
        remedy = f"task.module={near}" if is_own else "import that"
        return f"the project has no module {name}; it has {near}", remedy
    return f"the project has no module {name}", "add it, or correct the name"


def _explain_relative(script: str, paths: AbstractSet[str], path_key: str) -> Tuple[str, str]:
    """Return the same for `from .x import y` in a script."""
    meaning = f"as it is started, {script} belongs to no package"
    home = posixpath.dirname(script)
    if not home or script not in paths:
        return meaning, "import without the dot: what is beside the script is found"
    is_package = f"{home}/__init__.py" in paths
    while f"{home}/__init__.py" in paths:
        home = posixpath.dirname(home)
    home = home if is_package else ""
    module = posixpath.relpath(script, home or ".")[: -len(".py")].replace("/", ".")
    setting = f" {path_key}{home}" if home else ""
    return meaning, f"task.module={module}{setting} instead of task.script={script}"


def importable(paths: AbstractSet[str]) -> Dict[str, Set[str]]:
    """Return the modules and packages in files, each with the folders from which it is imported."""
    folders: Dict[str, Set[str]] = {}
    for path in paths:
        parts = re.sub(r"(/__init__)?\.py$", "", path).split("/")
        for start in range(len(parts)):
            folder = "/".join(parts[:start]) or "."
            if f"{folder}/__init__.py" in paths:
                break
            for end in range(start + 1, len(parts) + 1):
                folders.setdefault(".".join(parts[start:end]), set()).add(folder)
    return folders
