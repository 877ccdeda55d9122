"""Search path of YAML: the folders given, the user's own, and the shipped one; Hydra with them."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.version import VersionBase

from runner.config.schema import GROUPS, register
from runner.core.errors import ConfigError, Problem

if TYPE_CHECKING:
    from hydra._internal.hydra import Hydra
    from hydra.core.config_search_path import ConfigSearchPath


def conf_folders(extra: Sequence[str]) -> list[Path]:
    """Return the folders of YAML in order: `extra`, the user's own, the shipped one."""
    try:
        cwd = Path.cwd()
    except OSError as error:
        problem = Problem("", f"the working directory is not there: {error.strerror}")
        raise ConfigError([problem]) from error
    folders = [cwd / Path(name).expanduser() for name in extra]
    missing = [folder for folder in folders if not folder.is_dir()]
    if missing:
        raise ConfigError([Problem("--config-dir", f"there is no folder {f}") for f in missing])
    confs = (folder / "conf" for folder in (cwd, *cwd.parents))
    own = next((conf for conf in confs if any((conf / group).is_dir() for group in GROUPS)), None)
    distinct: dict[Path, Path] = {}
    for folder in filter(None, (*folders, own, shipped_folder())):
        distinct.setdefault(folder.resolve(), folder)
    return list(distinct.values())


def shipped_folder() -> Path:
    """Return our own folder: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


@contextlib.contextmanager
def hydra_session(folders: Sequence[Path], name: str) -> Iterator[Hydra]:
    """Initialise Hydra with a search path and our schema, and leave its global state as it was.

    The program around us may run under `@hydra.main`. `name` is what Hydra calls the job.
    """
    Plugins.instance().register(_UserFolders)  # first: plugins fill Hydra's store as they load
    hydra, config, store = GlobalHydra.instance(), HydraConfig.instance(), ConfigStore.instance()
    base = VersionBase.instance()
    saved = hydra.hydra, config.cfg, store.repo, base.getbase(), _UserFolders.folders
    hydra.clear()
    store.repo = {name: copy.copy(node) for name, node in store.repo.items()}  # groups are dicts
    try:
        _UserFolders.folders = folders[:-1]
        register()
        with initialize_config_dir(str(folders[-1]), job_name=name, version_base="1.3"):
            yield cast("Hydra", GlobalHydra.instance().hydra)
    finally:
        # `initialize_config_dir` leaves a copy of GlobalHydra in its place.
        GlobalHydra.set_instance(hydra)
        hydra.hydra, config.cfg, store.repo, version_base, _UserFolders.folders = saved
        base.version_base = version_base


class _UserFolders(SearchPathPlugin):
    """The user's folders before the shipped one; Hydra's own `--config-dir` never shadows them."""

    folders: ClassVar[Sequence[Path]] = ()

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in self.folders:
            search_path.prepend("user", f"file://{folder}", "main")
