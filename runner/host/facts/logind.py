"""Whether logind kills what a user leaves running at logout (logind.conf(5), KillUserProcesses)."""

from __future__ import annotations

import contextlib
import os
from typing import Dict, List, Tuple

from runner.host.process import cgroup

FOLDERS = ("etc", "run", "usr/local/lib", "usr/lib")
"""Where systemd looks; a file hides those of its name in later ones."""

_YES = ("1", "yes", "y", "true", "t", "on")


def kills(user: str, root: str = "/") -> str:
    """Return the setting by which logind would kill a run at logout, "" if it would not.

    Only what is in the scope of a session is killed with it; a service or a container is not.
    """
    own = cgroup.own_cgroups(root)
    places = (own.get(cgroup.UNIFIED, ""), own.get("name=systemd", ""))
    if not any(_is_session(part) for place in places for part in place.split("/")):
        return ""
    return _verdict(user, _settings(root))


def _is_session(part: str) -> bool:
    return part.startswith("session-") and part.endswith(".scope")


def _verdict(user: str, settings: Dict[str, Tuple[str, str]]) -> str:
    """Decide as logind does: exclusions, then the list of victims, then the switch."""
    excluded, _ = settings.get("KillExcludeUsers", ("", ""))
    only, where = settings.get("KillOnlyUsers", ("", ""))
    if user in (excluded.split() or ["root"]):
        return ""
    if only.split():
        return f"KillOnlyUsers={user} in {where}" if user in only.split() else ""
    switch, where = settings.get("KillUserProcesses", ("no", ""))
    return f"KillUserProcesses={switch} in {where}" if switch.lower() in _YES else ""


def _settings(root: str) -> Dict[str, Tuple[str, str]]:
    """Return the value of each setting and the file that has it; lists grow, "" empties them."""
    found: Dict[str, Tuple[str, str]] = {}
    for path in _files(root):
        section = ""
        for line in _lines(path):
            name, equals, value = (part.strip() for part in line.partition("="))
            if line.startswith("["):
                section = line.strip()
            elif equals and section == "[Login]" and not line.startswith(("#", ";")):
                before, _ = found.get(name, ("", ""))
                if value and name.endswith("Users"):
                    value = f"{before} {value}"
                found[name] = (value, "/" + os.path.relpath(path, root))
    return found


def _files(root: str) -> List[str]:
    """Return the files that count, the first first: one main file, then what is dropped in."""
    main: List[str] = []
    dropped: Dict[str, str] = {}
    for folder in FOLDERS:
        base = os.path.join(root, folder, "systemd")
        if not main and os.path.exists(f"{base}/logind.conf"):
            main = [f"{base}/logind.conf"]
        with contextlib.suppress(OSError):
            for name in os.listdir(f"{base}/logind.conf.d"):
                if name.endswith(".conf"):
                    dropped.setdefault(name, f"{base}/logind.conf.d/{name}")
    return main + [dropped[name] for name in sorted(dropped)]


def _lines(path: str) -> List[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return [line.strip() for line in file]
    except OSError:
        return []
