"""YAML of a configuration: the folders where it is looked for, and what Hydra is given of a file.

Scalars are texts as they were written, except for `true`, `false` and null.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import yaml
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource
from omegaconf import OmegaConf
from yaml.constructor import ConstructorError

from runner.config.words import leaves
from runner.core.errors import NO_FOLDER, ConfigError, Problem, reason_of
from runner.core.shell import expand_home
from runner.core.spec import GROUPS

PRIMARY = "runner"  # conf/runner.yaml
SCHEMA = "runner_base"
SUFFIXES = (".yaml", ".yml")
OURS = frozenset(f"{group}/base" for group in GROUPS)
"""The defaults of each group, whatever file another program has of that name."""

NOT_OF_HYDRA = "settings of Hydra have no effect on a launch"
KeyPath = tuple[str, ...]
"""The path to a key: its parts from the top."""

BOOL = re.compile(r"(true|True|TRUE|false|False|FALSE)\Z")
NULL = re.compile(r"(~|null|Null|NULL|)\Z")


@dataclass
class YamlFile:
    path: Path
    content: dict[str, Any]
    lines: dict[KeyPath, int] = field(default_factory=dict)

    def place(self, key: str) -> str:
        """Return `FILE:LINE: KEY` for a key, or the file alone for ""."""
        keys = tuple(key.split("."))
        line = self.lines.get(keys) or self.lines.get(keys[1:])
        where = f"{display_path(self.path)}:{line}" if line else display_path(self.path)
        return f"{where}: {key}" if key else where


class _Loader(yaml.SafeLoader):
    """Reads the words of YAML's core schema as bool and null; all else is text."""


class _Dumper(yaml.SafeDumper):
    """Quotes what `_Loader` would not read as text."""

    def text(self, data: str) -> yaml.Node:
        """Return the node of a text, which may hold what YAML takes for the end of a line."""
        style = '"' if re.search("[\x85\u2028\u2029]", data) else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 (PyYAML's signature)
        return True


for _each in (_Loader, _Dumper):
    _each.yaml_implicit_resolvers = {}
    _each.add_implicit_resolver("tag:yaml.org,2002:bool", BOOL, list("tTfF"))
    _each.add_implicit_resolver("tag:yaml.org,2002:null", NULL, ["~", "n", "N", ""])
_Dumper.add_representer(str, _Dumper.text)
_Loader.add_implicit_resolver("tag:yaml.org,2002:merge", re.compile("<<"), ["<"])


def dump(value: Any, *, in_one_line: bool = False) -> str:
    """Return plain data as YAML that `read` gives back."""
    return yaml.dump(
        value,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=10**6,
        default_flow_style=in_one_line,
    )


def one_line(value: Any) -> str:
    return dump(value, in_one_line=True).removesuffix("\n").removesuffix("\n...")


def read(path: Path) -> YamlFile:
    """Return a file of YAML; raise ConfigError with its place if it is none."""
    try:
        return parse(path.read_text(encoding="utf-8"), path)
    except (OSError, ValueError) as error:
        message = f"cannot be read: {reason_of(error)}"
        raise ConfigError([Problem(display_path(path), message)]) from error


def parse(text: str, path: Path) -> YamlFile:
    """Return a text of YAML as the file that it is from."""
    where = display_path(path)
    lines: dict[KeyPath, int] = {}
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        content = {} if node is None else _plain(loader, node, (), lines)
    except (yaml.YAMLError, RecursionError) as error:
        message = " ".join(str(error).split())
        mark = getattr(error, "problem_mark", None)
        if isinstance(error, yaml.MarkedYAMLError) and mark is not None:
            message = ", ".join(filter(None, (error.context, error.problem)))
            where = f"{where}:{mark.line + 1}:{mark.column + 1}"
        raise ConfigError([Problem(where, message)]) from error
    if not isinstance(content, dict):
        raise ConfigError([Problem(where, "must be a mapping of keys to values")])
    return YamlFile(path, content, lines)


def _plain(loader: _Loader, node: yaml.Node, where: KeyPath, lines: dict[KeyPath, int]) -> Any:
    """Return a node as plain data; note the line of each key below it."""
    if isinstance(node, yaml.MappingNode):
        content: dict[str, Any] = {}
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ConstructorError(None, None, "a key must be a text", key.start_mark)
            if key.value in seen and key.value != "<<":
                raise ConstructorError(None, None, f"{key.value} is there twice", key.start_mark)
            seen.add(str(key.value))
        loader.flatten_mapping(node)
        for key, value in node.value:
            below = (*where, str(key.value))
            lines[below] = key.start_mark.line + 1
            content[below[-1]] = _plain(loader, value, below, lines)
        return _flat(content, where, lines, node.start_mark) if "args" in where[-1:] else content
    if isinstance(node, yaml.SequenceNode):
        items = enumerate(node.value)
        return [_plain(loader, item, (*where, str(index)), lines) for index, item in items]
    if node.tag == "tag:yaml.org,2002:null":
        return None
    is_text = "env" in where[-2:-1] or re.fullmatch(r"(task\.)?command(\.\d+)?", ".".join(where))
    if node.tag == "tag:yaml.org,2002:bool" and not is_text:
        return node.value.lower() == "true"
    return node.value


def _flat(
    content: Mapping[str, Any], where: KeyPath, lines: dict[KeyPath, int], mark: yaml.Mark
) -> dict[str, Any]:
    """Return arguments with `model: {lr: …}` as `model.lr`, which is how a flag is called."""
    arguments: dict[str, Any] = {}
    for name, value in leaves(content):
        if name in arguments:
            raise ConstructorError(None, None, f"{name} is there twice", mark)
        arguments[name] = value
        lines.setdefault((*where, name), lines.get((*where, *name.split(".")), mark.line + 1))
    return arguments


def display_path(file: Path) -> str:
    """Return a path relative to the working directory, if it is below it."""
    cwd = Path.cwd()
    return str(file.relative_to(cwd) if file.is_relative_to(cwd) else file)


def shipped_folder() -> Path:
    """Return our own folder: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "conf"
    return inside if inside.is_dir() else package.parent / "conf"


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
    marks = ("cluster", "task", f"{PRIMARY}.yaml")
    own = [conf for conf in confs_upwards() if any((conf / mark).exists() for mark in marks)]
    distinct: dict[Path, Path] = {}
    for folder in (*folders, *own[:1], shipped_folder()):
        distinct.setdefault(folder.resolve(), folder)
    return list(distinct.values())


def confs_upwards() -> list[Path]:
    """Return each `conf` from here upwards, the nearest first."""
    cwd = Path.cwd()
    confs = [folder / "conf" for folder in (cwd, *cwd.parents)]
    return [conf for conf in confs if conf.is_dir()]


def _files(folder: Path) -> list[Path]:
    return sorted(file for suffix in SUFFIXES for file in folder.glob(f"*{suffix}"))


class ConfigFiles:
    """The YAML files of several folders; the first folder that has a file wins."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders
        self.given: dict[str, Path] = {}  # files chosen by their path, by the name of the config
        self.loaded: dict[str, YamlFile] = {}  # of the last configuration, by the same name

    def find(self, config: str) -> list[Path]:
        if config in OURS:
            return []
        if config in self.given:
            return [self.given[config]]
        found: list[Path] = []
        for folder in self.folders:
            files = [folder / f"{config}{suffix}" for suffix in SUFFIXES]
            found += [file for file in files if file.is_file()][:1]
        return found

    def options(self, group: str) -> list[str]:
        names = [file.stem for folder in self.folders for file in _files(folder / group)]
        return list(dict.fromkeys(names))

    def has_group(self, group: str) -> bool:
        return any((folder / group).is_dir() for folder in self.folders)

    def shadows(self) -> Iterator[str]:
        """Yield a note for each config whose file shadows another."""
        for config in sorted(self.loaded):
            files = self.find(config)
            if config == PRIMARY:  # the shipped one is merged below the own one, and hidden by none
                files = [file for file in files if file.parent != shipped_folder()]
            if len(files) > 1:
                yield f"{config}: {files[0]} (shadows {' and '.join(map(str, files[1:]))})"


class YamlSource(ConfigSource):
    """These files, for Hydra."""

    files: ClassVar[ConfigFiles]

    @staticmethod
    def scheme() -> str:
        return "runner"

    def load_config(self, config_path: str) -> ConfigResult:
        name = config_path.removesuffix(".yaml")
        yaml_file = read(self.files.find(name)[0])
        self.files.loaded[name] = yaml_file
        content = dict(yaml_file.content)
        if "hydra" in content:
            raise ConfigError([Problem(yaml_file.place("hydra"), NOT_OF_HYDRA, "leave them out")])
        for group in content.keys() & {*GROUPS}:
            if not isinstance(content[group], dict):
                hint = f"under `defaults:` write `- {group}: NAME`"
                message = "takes a mapping of keys to values"
                raise ConfigError([Problem(yaml_file.place(group), message, hint)])
        if name == PRIMARY:
            content["defaults"] = _defaults(yaml_file)
        header = self._get_header_dict(yaml_file.path.read_text(encoding="utf-8")[:512])
        return ConfigResult(self.provider, self.full_path(), OmegaConf.create(content), header)

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return self.files.has_group(config_path)

    def is_config(self, config_path: str) -> bool:
        return bool(self.files.find(config_path.removesuffix(".yaml")))

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return [] if results_filter == ObjectType.GROUP else self.files.options(config_path)


def _defaults(primary: YamlFile) -> Any:
    """Return the list of defaults of `runner.yaml`, with ours for what it does not choose."""
    theirs = primary.content.get("defaults") or []
    if not isinstance(theirs, list):  # Hydra says so
        return theirs
    own = chosen_groups(primary)
    usual = chosen_groups(read(shipped_folder() / f"{PRIMARY}.yaml"))
    choices = [{group: own.get(group, option)} for group, option in usual.items()]
    others = [entry for entry in theirs if not (isinstance(entry, dict) and own.keys() & entry)]
    others = [entry for entry in others if entry not in (PRIMARY, SCHEMA)]  # they are there anyway
    last = [] if "_self_" in others else ["_self_"]
    return [SCHEMA, *choices, *others, *last]


def chosen_groups(primary: YamlFile) -> dict[str, Any]:
    """Return the files that `runner.yaml` chooses, by the group."""
    entries = primary.content.get("defaults") or []
    pairs = [pair for entry in entries if isinstance(entry, dict) for pair in entry.items()]
    return {name: option for name, option in pairs if name in GROUPS}
