"""Where YAML is looked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.core.errors import ConfigError, Problem

GROUPS = ("cluster", "task", "rendezvous")


def conf_folders(given: Sequence[str]) -> list[Path]:
    """Return where YAML is looked for, the first first: `given`, the user's own, the shipped one.

    Raises:
        ConfigError: One of `given` is no folder, or there is no working directory.
    """
    try:
        here = Path.cwd()
    except OSError as error:
        problem = Problem("", f"the working directory is not there: {error.strerror}")
        raise ConfigError([problem]) from error
    folders = [here / Path(name).expanduser() for name in given]
    missing = [folder for folder in folders if not folder.is_dir()]
    if missing:
        raise ConfigError([Problem("--config-dir", f"there is no folder {f}") for f in missing])
    distinct: dict[Path, Path] = {}
    for folder in (*folders, *_users(here), shipped()):
        distinct.setdefault(folder.resolve(), folder)
    return list(distinct.values())


def _users(here: Path) -> list[Path]:
    """Return the nearest `conf` upwards that holds clusters or tasks."""
    found = (folder / "conf" for folder in (here, *here.parents))
    return [conf for conf in found if any((conf / group).is_dir() for group in GROUPS)][:1]


def shipped() -> Path:
    """Return our own folder: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"
