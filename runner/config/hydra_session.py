"""Hydra in this process: our schema and folders are its own while a composer is open."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import hydra
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.version import VersionBase
from omegaconf import OmegaConf

from runner.config.source import PRIMARY, SCHEMA, YamlSource, shipped_folder
from runner.core.spec import GROUPS, Spec, written_defaults


class _Folders(SearchPathPlugin):
    """The folders of YAML, for Hydra."""

    folders: ClassVar[Sequence[Path]] = ()

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in reversed(self.folders):
            search_path.prepend("runner", f"runner://{folder}")


@contextlib.contextmanager
def open_hydra(folders: Sequence[Path]) -> Iterator[None]:
    """Have Hydra look for YAML in these folders.

    Its global state is left as it was: the program around us may run under `@hydra.main`.
    """
    Plugins.instance().register(_Folders)  # first: plugins fill Hydra's store as they load
    Plugins.instance().register(YamlSource)
    instance = GlobalHydra.instance()
    config = HydraConfig.instance()
    store = ConfigStore.instance()
    base = VersionBase.instance()
    saved = (instance.hydra, config.cfg, store.repo, base.getbase())
    instance.clear()
    store.repo = {name: copy.copy(node) for name, node in store.repo.items()}  # groups are dicts
    _Folders.folders = folders
    YamlSource.given = {}
    try:
        _register_schema(store)
        shipped = str(shipped_folder())
        with hydra.initialize_config_dir(shipped, job_name=PRIMARY, version_base="1.3"):
            yield
    finally:
        # `initialize_config_dir` leaves a copy of GlobalHydra in its place.
        GlobalHydra.set_instance(instance)
        instance.hydra, config.cfg, store.repo, version = saved
        base.version_base = version
        _Folders.folders = ()


def _register_schema(store: ConfigStore) -> None:
    """Register the defaults with Hydra, as `runner_base`, `cluster/base` and so on."""
    defaults = written_defaults(Spec)
    store.store(name=SCHEMA, node=OmegaConf.create(defaults))
    for group in GROUPS:
        store.store(group=group, name="base", node=OmegaConf.create(defaults[group]))
    # For clusters of this machine: the first python3 on PATH may lack torch.
    OmegaConf.register_new_resolver("this_python", lambda: sys.executable, replace=True)
