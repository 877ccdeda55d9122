"""Search path of YAML: the folders given, the user's own, and the shipped one; Hydra with them.

The first folder that has a file wins; a message names the file and the line that set a key.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast

import yaml
from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.version import VersionBase

from runner.config.hydra_settings import register
from runner.config.overrides import override_key
from runner.config.schema import GROUPS, SECTIONS
from runner.core.errors import NO_FOLDER, ConfigError, Problem
from runner.core.shell import expand_home

if TYPE_CHECKING:
    from hydra._internal.config_repository import CachingConfigRepository, IConfigRepository
    from hydra._internal.hydra import Hydra
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.default_element import ResultDefault
    from hydra.core.override_parser.types import Override
    from omegaconf import DictConfig


def conf_folders(extra: Sequence[str]) -> list[Path]:
    """Return the folders of YAML in order: `extra`, the user's own, the shipped one."""
    try:
        cwd = Path.cwd()
    except OSError as error:
        raise ConfigError([NO_FOLDER]) from error
    folders = [cwd / expand_home(name) for name in extra]
    missing = [folder for folder in folders if not folder.is_dir()]
    if missing:
        raise ConfigError([Problem("--config-dir", f"there is no folder {f}") for f in missing])
    own = next(filter(is_marked, _confs_upwards(cwd)), None)
    distinct: dict[Path, Path] = {}
    for folder in filter(None, (*folders, own, shipped_folder())):
        distinct.setdefault(folder.resolve(), folder)
    return list(distinct.values())


def _confs_upwards(cwd: Path) -> Iterator[Path]:
    yield from (folder / "conf" for folder in (cwd, *cwd.parents))


def is_marked(conf: Path) -> bool:
    """Return whether a folder is meant for us: other programs have a `conf/task`, too.

    It has a `runner.yaml`, or at least one file of a group that builds on one of ours or that has
    no keys but ours. The text decides, so that a file with a mistake counts as well.
    """
    if (conf / "runner.yaml").is_file():
        return True
    files = ((group, file) for group in GROUPS for file in sorted((conf / group).glob("*.yaml")))
    return any(_is_of_group(group, file) for group, file in files)


def _is_of_group(group: str, file: Path) -> bool:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:  # whoever chooses it is told
        return True
    parent = re.search(r"^defaults:\s*(?:\[\s*|\n\s*-\s*)([\w-]+)", text, re.MULTILINE)
    shipped = {"base", *(ours.stem for ours in (shipped_folder() / group).glob("*.yaml"))}
    if parent and parent[1] in shipped and not file.with_name(f"{parent[1]}.yaml").exists():
        return True
    keys = {*re.findall(r"^([\w-]+)\s*:", text, re.MULTILINE)} - {"defaults"}
    return bool(keys) and keys <= {option.name for option in dataclasses.fields(SECTIONS[group])}


def unmarked_file(config: str) -> Path | None:
    """Return the nearest file of a config in a `conf` that is not marked as ours, or None."""
    confs = (conf for conf in _confs_upwards(Path.cwd()) if (conf / f"{config}.yaml").is_file())
    return next((conf / f"{config}.yaml" for conf in confs if not is_marked(conf)), None)


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
            session = cast("Hydra", GlobalHydra.instance().hydra)
            loader = cast("ConfigLoaderImpl", session.config_loader)
            session.config_loader = RememberingLoader(loader.get_search_path())
            yield session
    finally:
        # `initialize_config_dir` leaves a copy of GlobalHydra in its place.
        GlobalHydra.set_instance(hydra)
        hydra.hydra, config.cfg, store.repo, version_base, _UserFolders.folders = saved
        base.version_base = version_base


@dataclass(frozen=True)
class Sources:
    """What one configuration was composed of, as it was then; Hydra is not needed to read it."""

    defaults: Sequence[ResultDefault]  # the last one wins
    overrides: Sequence[tuple[str, Override]]  # each with the word as it was typed
    files: Mapping[str, tuple[Path, str]]  # by the name of the config, with the text
    records: Mapping[str, Path]  # files of configs that are in Hydra's store, too
    stored: Mapping[str, Any]  # the content of Hydra's store: nodes, and those of each group


class RememberingLoader(ConfigLoaderImpl):
    """Hydra's loader of configurations, which keeps what the last one was composed of.

    To find it again takes as long as to compose.
    """

    _parsed: Sequence[Override] = ()
    _last: tuple[Sequence[ResultDefault], Sequence[Override], Sequence[Path]] = (), (), ()

    def _parse_overrides_and_create_caching_repo(
        self, config_name: str | None, overrides: list[str]
    ) -> tuple[list[Override], CachingConfigRepository]:
        parsed, repo = super()._parse_overrides_and_create_caching_repo(config_name, overrides)
        self._parsed = parsed
        return parsed, repo

    def _compose_config_from_defaults_list(
        self, defaults: list[ResultDefault], repo: IConfigRepository
    ) -> DictConfig:
        roots = [Path(each.path) for each in repo.get_sources() if each.scheme() == "file"]
        self._last = defaults, self._parsed, roots
        return super()._compose_config_from_defaults_list(defaults, repo)

    def sources(self, typed: Mapping[str, str], records: Mapping[str, Path]) -> Sources:
        """Return what the last configuration was composed of.

        `typed` has the words of the user for those of Hydra, `records` the files of configs that
        were put into Hydra's store.
        """
        defaults, overrides, roots = self._last
        files = {}
        for path in (str(each.config_path).removesuffix(".yaml") for each in defaults):
            named = (root / f"{path}.yaml" for root in roots if not path.startswith("hydra/"))
            file = next(filter(Path.is_file, named), records.get(path))
            if file:
                with contextlib.suppress(OSError):  # it has gone since
                    files[path] = file, file.read_text(encoding="utf-8", errors="replace")
        words = [(str(each.input_line), each) for each in overrides]
        given = [(typed.get(word, word), each) for word, each in words]
        return Sources(defaults, given, files, dict(records), ConfigStore.instance().repo)


class _UserFolders(SearchPathPlugin):
    """The user's folders before the shipped one; Hydra's own `--config-dir` never shadows them."""

    folders: ClassVar[Sequence[Path]] = ()

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in self.folders:
            search_path.prepend("user", f"file://{folder}", "main")


KeyPath = tuple[str, ...]
"""The path to a key: its parts from the top."""


class ConfigFiles:
    """The YAML files of several folders; the first folder that has a file wins."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders
        self.shipped = shipped_folder()
        self.shipped_primary = self.shipped / "runner.yaml"
        self.explicit_paths: dict[str, Path] = {}  # of configs that are named otherwise

    def find(self, config: str) -> list[Path]:
        """Return the files of a config, the one that wins first."""
        if config in self.explicit_paths:
            return [self.explicit_paths[config]]
        files = (folder / f"{config}.yaml" for folder in self.folders)
        return [file for file in files if file.is_file()]

    @property
    def has_own(self) -> bool:
        """Whether the user has a folder of YAML."""
        return len(self.folders) > 1

    def options(self, group: str, *, own_only: bool = False) -> list[str]:
        """Return the options of a group that have a file, the user's own before the shipped."""
        folders = self.folders[:-1] if own_only else self.folders
        stems = (sorted(f.stem for f in (each / group).glob("*.yaml")) for each in folders)
        return list(dict.fromkeys(stem for names in stems for stem in names))

    def shadows(self, configs: Sequence[str]) -> Iterator[str]:
        """Yield a note for each config whose file shadows another."""
        for config in configs:
            chosen, *hidden = self.find(config) or [self.shipped]
            if hidden:
                yield f"{config}: {chosen} (shadows {' and '.join(map(str, hidden))})"

    def locate_key(self, key: str, configs: Sequence[str], overrides: Sequence[str] = ()) -> str:
        """Return `FILE:LINE: KEY` for the file that sets a key, or the key alone.

        A shipped rendezvous counts as no file: users choose one, and do not edit it.
        """
        groups = {config.rpartition("/")[0] for config in configs}
        for word in overrides:
            overridden = override_key(word)
            if overridden not in groups and f"{key}.".startswith(f"{overridden}."):
                return key
        keys = tuple(key.split("."))
        for config in configs:
            file = next(iter(self.find(config)), None)
            is_shipped = file is not None and file.is_relative_to(self.shipped)
            if file is None or (is_shipped and config.startswith("rendezvous/")):
                continue
            lines = key_lines(file)
            package = tuple(config.split("/")[:-1])
            inner = keys[len(package) :] if keys[: len(package)] == package else keys
            if line := lines.get(keys) or lines.get(inner):
                return f"{display_path(file)}:{line}: {key}"
        return key


def display_path(file: Path) -> str:
    """Return a path relative to the working directory, if it is below it."""
    cwd = Path.cwd()
    return str(file.relative_to(cwd) if file.is_relative_to(cwd) else file)


def key_lines(file: Path) -> dict[KeyPath, int]:
    """Return the line of every key and list item in a YAML file; nothing if it cannot be read."""
    try:
        return key_lines_of(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def key_lines_of(text: str) -> dict[KeyPath, int]:
    """Return the line of every key and list item in YAML; nothing if it cannot be read."""
    lines: dict[KeyPath, int] = {}

    def walk(path: KeyPath, node: yaml.Node | None) -> None:
        pairs: list[tuple[str, yaml.Node, yaml.Node]] = []
        if isinstance(node, yaml.MappingNode):
            loader.flatten_mapping(node)
            pairs = [(str(key.value), key, value) for key, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            pairs = [(str(index), value, value) for index, value in enumerate(node.value)]
        for name, key, value in pairs:
            inner = (*path, name)
            lines[inner] = key.start_mark.line + 1
            walk(inner, value)

    try:
        loader = yaml.SafeLoader(text)
        walk((), loader.get_single_node())
    except (ValueError, yaml.YAMLError):
        return {}
    return lines


_SYNTAX_REMEDIES = {
    r"mapping values are not allowed|expected <block end>": (
        "keys beside each other begin in one column, those below a key further in; a text with "
        "`: ` in it is quoted"
    ),
    r"character '\\t' that cannot": "indent with spaces, not with tabs",
    r"expected alphabetic or numeric": "a text that begins with * or & is quoted, such as '*.pth'",
    r"that cannot start any token": "a text that begins so is quoted",
    r"expected ',' or|expected the node content": "a bracket is not closed, or a comma is missing",
    r"unexpected end of stream": "a quote is not closed",
}
"""What to do about PyYAML's messages."""


def syntax_problem(error: yaml.MarkedYAMLError, mark: yaml.Mark) -> Problem:
    """Return the problem of a file that YAML cannot parse, as FILE:LINE:COLUMN."""
    text = ", ".join(filter(None, (error.context, error.problem)))
    remedy = next((hint for known, hint in _SYNTAX_REMEDIES.items() if re.search(known, text)), "")
    lines: list[str] = []
    with contextlib.suppress(OSError, ValueError):
        lines = Path(mark.name).read_text(encoding="utf-8").splitlines()
    line = lines[mark.line].strip() if mark.line < len(lines) else ""
    where = f"{display_path(Path(mark.name))}:{mark.line + 1}:{mark.column + 1}"
    return Problem(where, text, "\n".join(filter(None, (f"there: {line}" * bool(line), remedy))))
