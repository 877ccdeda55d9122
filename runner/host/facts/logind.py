"""Logind settings: does it kill what a user leaves running at logout (logind.conf(5))?"""

from __future__ import annotations

import os
from typing import Dict, List, Tuple

from runner.host.process import cgroup, procfs

CONFIG_ROOTS = ("etc", "run", "usr/local/lib", "usr/lib")
"""Where systemd looks; a file hides files of its name in later folders."""

_TRUE_WORDS = ("1", "yes", "y", "true", "t", "on")


def kill_setting(user: str, root: str = "/") -> str:
    """Return the setting by which logind would kill a run at logout, "" if it would not.

    Only processes in the scope of a session are killed, not those of a service or container.
    """
    cgroups = cgroup.own_cgroups(root)
    paths = (cgroups.get(cgroup.UNIFIED, ""), cgroups.get("name=systemd", ""))
    if not any(_is_session(part) for path in paths for part in path.split("/")):
        return ""
    return _effective_setting(user, _read_settings(root))


def _is_session(part: str) -> bool:
    return part.startswith("session-") and part.endswith(".scope")


def _effective_setting(user: str, settings: Dict[str, Tuple[str, str]]) -> str:
    """Decide as logind does: exclusions, then the list of users, then the switch."""
    excluded, _ = settings.get("KillExcludeUsers", ("", ""))
    included, source = settings.get("KillOnlyUsers", ("", ""))
    if user in (excluded.split() or ["root"]):
        return ""
    if included.split():
        return f"KillOnlyUsers={user} in {source}" if user in included.split() else ""
    switch, source = settings.get("KillUserProcesses", ("no", ""))
    return f"KillUserProcesses={switch} in {source}" if switch.lower() in _TRUE_WORDS else ""


def _read_settings(root: str) -> Dict[str, Tuple[str, str]]:
    """Return the value and file of each setting; lists are appended to, "" empties them."""
    settings: Dict[str, Tuple[str, str]] = {}
    for path in _config_files(root):
        section = ""
        for line in map(str.strip, procfs.read_text(path).splitlines()):
            name, equals, value = (part.strip() for part in line.partition("="))
            if line.startswith("["):
                section = line.strip()
            elif equals and section == "[Login]" and not line.startswith(("#", ";")):
                previous, _ = settings.get(name, ("", ""))
                if value and name.endswith("Users"):
                    value = f"{previous} {value}"
                settings[name] = (value, "/" + os.path.relpath(path, root))
    return settings


def _config_files(root: str) -> List[str]:
    """Return the effective files in order: one main file, then the drop-ins."""
    main: List[str] = []
    drop_ins: Dict[str, str] = {}
    for folder in CONFIG_ROOTS:
        base = os.path.join(root, folder, "systemd")
        if not main and os.path.exists(f"{base}/logind.conf"):
            main = [f"{base}/logind.conf"]
        for name in procfs.list_names(f"{base}/logind.conf.d"):
            if name.endswith(".conf"):
                drop_ins.setdefault(name, f"{base}/logind.conf.d/{name}")
    return main + [drop_ins[name] for name in sorted(drop_ins)]
