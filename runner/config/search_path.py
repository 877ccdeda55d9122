"""Search path of YAML: the folders given, the user's own, and the shipped one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.core.errors import ConfigError, Problem

GROUPS = ("cluster", "task", "rendezvous")


def conf_folders(extra: Sequence[str]) -> list[Path]:
    """Return the folders of YAML in order: `extra`, the user's own, the shipped one.

    Raises:
        ConfigError: One of `extra` is no folder, or there is no working directory.
    """
    try:
        cwd = Path.cwd()
    except OSError as error:
        problem = Problem("", f"the working directory is not there: {error.strerror}")
        raise ConfigError([problem]) from error
    folders = [cwd / Path(name).expanduser() for name in extra]
    missing = [folder for folder in folders if not folder.is_dir()]
    if missing:
        raise ConfigError([Problem("--config-dir", f"there is no folder {f}") for f in missing])
    distinct: dict[Path, Path] = {}
    for folder in (*folders, *_user_conf(cwd), shipped_folder()):
        distinct.setdefault(folder.resolve(), folder)
    return list(distinct.values())


def _user_conf(cwd: Path) -> list[Path]:
    """Return the nearest `conf` upwards that holds clusters or tasks."""
    candidates = (folder / "conf" for folder in (cwd, *cwd.parents))
    return [conf for conf in candidates if any((conf / group).is_dir() for group in GROUPS)][:1]


def shipped_folder() -> Path:
    """Return our own folder: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"
