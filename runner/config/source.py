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
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml.constructor import ConstructorError

from runner.core.errors import NO_FOLDER, ConfigError, Problem, reason_of
from runner.core.shell import expand_home
from runner.core.spec import GROUPS, Spec, keys_of, section_of, written_default

PRIMARY = "runner"  # conf/runner.yaml
SCHEMA = "runner_base"
SUFFIXES = (".yaml", ".yml")
KeyPath = tuple[str, ...]
"""The path to a key: its parts from the top."""

BOOL = re.compile(r"(true|True|TRUE|false|False|FALSE)\Z")
NULL = re.compile(r"(~|null|Null|NULL|)\Z")


@dataclass
class YamlFile:
    """A file of YAML, read."""

    path: Path
    content: dict[str, Any]
    lines: dict[KeyPath, int] = field(default_factory=dict)

    def place(self, key: str) -> str:
        """Return `FILE:LINE: KEY` for a key below its package, or the file alone for ""."""
        line = self.lines.get(tuple(key.split(".")))
        where = f"{display_path(self.path)}:{line}" if line else display_path(self.path)
        return f"{where}: {key}" if key else where


class _Loader(yaml.SafeLoader):
    """Reads the words of YAML's core schema as bool and null; all else is text."""


class _Dumper(yaml.SafeDumper):
    """Quotes what `_Loader` would not read as text."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 (PyYAML's signature)
        return True


for _each in (_Loader, _Dumper):
    _each.yaml_implicit_resolvers = {}
    _each.add_implicit_resolver("tag:yaml.org,2002:bool", BOOL, list("tTfF"))
    _each.add_implicit_resolver("tag:yaml.org,2002:null", NULL, ["~", "n", "N", ""])
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
    """Return plain data as one line of YAML."""
    return dump(value, in_one_line=True).removesuffix("\n").removesuffix("\n...")


def read(path: Path) -> YamlFile:
    """Return a file of YAML; raise ConfigError with its place if it is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        message = f"cannot be read: {reason_of(error)}"
        raise ConfigError([Problem(display_path(path), message)]) from error
    return parse(text, path)


def parse(text: str, path: Path) -> YamlFile:
    """Return a text of YAML as the file that it is from."""
    lines: dict[KeyPath, int] = {}
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        content = {} if node is None else _plain(loader, node, (), lines)
    except yaml.MarkedYAMLError as error:
        raise ConfigError([_syntax_problem(error, text, path)]) from error
    except yaml.YAMLError as error:
        message = " ".join(str(error).split())
        raise ConfigError([Problem(display_path(path), message)]) from error
    except RecursionError as error:
        message = "a value is within itself, or too deep"
        raise ConfigError([Problem(display_path(path), message)]) from error
    if not isinstance(content, dict):
        message = "must be a mapping of keys to values"
        raise ConfigError([Problem(display_path(path), message)])
    return YamlFile(path, content, lines)


def _plain(loader: _Loader, node: yaml.Node, where: KeyPath, lines: dict[KeyPath, int]) -> Any:
    """Return a node as plain data; note the line of each key and item below it."""
    if isinstance(node, yaml.MappingNode):
        content: dict[str, Any] = {}
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen and key.value != "<<":
                raise ConstructorError(None, None, f"{key.value} is there twice", key.start_mark)
            seen.add(str(key.value))
        loader.flatten_mapping(node)
        for key, value in node.value:
            name = str(key.value)
            below = (*where, name)
            lines[below] = key.start_mark.line + 1
            content[name] = _plain(loader, value, below, lines)
        return _nested(content) if "args" in where[-1:] else content
    if isinstance(node, yaml.SequenceNode):
        items = []
        for index, item in enumerate(node.value):
            below = (*where, str(index))
            lines[below] = item.start_mark.line + 1
            items.append(_plain(loader, item, below, lines))
        return items
    if node.tag == "tag:yaml.org,2002:null":
        return None
    is_text = "env" in where[-2:-1] or re.fullmatch(r"(task\.)?command(\.\d+)?", ".".join(where))
    if node.tag == "tag:yaml.org,2002:bool" and not is_text:
        return node.value.lower() == "true"
    return node.value


def _nested(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with `model.lr` as `model: {lr: …}`, as a typed word has it."""
    nested: dict[str, Any] = {}
    for name, value in arguments.items():
        *parents, last = name.split(".") if re.fullmatch(r"[^.]+(\.[^.]+)+", name) else [name]
        inner = nested
        for parent in parents:
            if not isinstance(inner.get(parent), dict):
                inner[parent] = {}
            inner = inner[parent]
        if isinstance(inner.get(last), dict) and isinstance(value, dict):
            inner[last] = {**inner[last], **value}
        else:
            inner[last] = value
    return nested


def _syntax_problem(error: yaml.MarkedYAMLError, text: str, path: Path) -> Problem:
    message = ", ".join(filter(None, (error.context, error.problem)))
    mark = error.problem_mark
    if mark is None:
        return Problem(display_path(path), message)
    line = "".join(text.splitlines()[mark.line : mark.line + 1]).strip()
    where = f"{display_path(path)}:{mark.line + 1}:{mark.column + 1}"
    return Problem(where, message, f"there: {line}" if line else "")


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
    own = next(filter(is_ours, _confs_upwards(cwd)), None)
    distinct: dict[Path, Path] = {}
    for folder in filter(None, (*folders, own, shipped_folder())):
        distinct.setdefault(folder.resolve(), folder)
    return list(distinct.values())


def _confs_upwards(cwd: Path) -> list[Path]:
    return [folder / "conf" for folder in (cwd, *cwd.parents)]


def is_ours(conf: Path) -> bool:
    """Return whether a folder is meant for us: other programs have a `conf/task`, too.

    It has a `runner.yaml`, or at least one file of a group that builds on one of ours or that has
    no keys but ours. The text decides, so that a file with a mistake counts as well.
    """
    if (conf / f"{PRIMARY}.yaml").is_file():
        return True
    return any(_is_of_group(group, file) for group in GROUPS for file in _files(conf / group))


def _files(folder: Path) -> list[Path]:
    return sorted(file for suffix in SUFFIXES for file in folder.glob(f"*{suffix}"))


def _is_of_group(group: str, file: Path) -> bool:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:  # whoever chooses it is told
        return True
    parent = re.search(r"^defaults:\s*(?:\[\s*|\n\s*-\s*)([\w-]+)", text, re.MULTILINE)
    shipped = {"base", *(ours.stem for ours in _files(shipped_folder() / group))}
    if parent and parent[1] in shipped and not file.with_name(f"{parent[1]}.yaml").exists():
        return True
    keys = {*re.findall(r"^([\w-]+)\s*:", text, re.MULTILINE)} - {"defaults"}
    section = section_of(keys_of(Spec)[group])
    return bool(keys) and section is not None and keys <= keys_of(section).keys()


def hidden_folder(config: str, folders: Sequence[Path]) -> Path | None:
    """Return the nearest `conf` upwards that has a config and is none of the folders."""
    for conf in _confs_upwards(Path.cwd()):
        files = (conf / f"{config}{suffix}" for suffix in SUFFIXES)
        if conf not in folders and any(map(Path.is_file, files)):
            return conf
    return None


class YamlSource(ConfigSource):
    """A folder of YAML, for Hydra."""

    loaded: ClassVar[dict[str, YamlFile]] = {}
    """What the current configuration was made of, by the name of the config."""

    given: ClassVar[dict[str, Path]] = {}
    """Files that were chosen by their path, by the name that Hydra knows them by."""

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider=provider, path=path)
        self._folder = Path(self.path)

    @staticmethod
    def scheme() -> str:
        """Return what an entry of the search path begins with."""
        return "runner"

    def load_config(self, config_path: str) -> ConfigResult:
        """Return a file as Hydra merges it."""
        file = self.file(config_path)
        if file is None:
            raise ConfigLoadError(f"there is no {config_path} in {self._folder}")
        yaml_file = read(file)
        name = config_path.removesuffix(".yaml")
        self.loaded[name] = yaml_file
        header = self._get_header_dict(file.read_text(encoding="utf-8")[:512])
        group = "" if header["package"] else name.rpartition("/")[0]
        if problems := [*_shape_problems(yaml_file, group)]:
            raise ConfigError(problems)
        content = dict(yaml_file.content)
        if name == PRIMARY:
            content["defaults"] = _defaults(yaml_file)
        try:
            config = OmegaConf.create(content)
        except OmegaConfBaseException as error:
            where = yaml_file.place(str(error.full_key or ""))
            raise ConfigError([Problem(where, str(error).partition("\n")[0])]) from error
        return ConfigResult(self.provider, self.full_path(), config, header)

    def file(self, config_path: str) -> Path | None:
        """Return the file of a config in this folder, or None."""
        name = config_path.removesuffix(".yaml")
        if name in self.given:
            return self.given[name]
        files = (self._folder / f"{name}{suffix}" for suffix in SUFFIXES)
        return next(filter(Path.is_file, files), None)

    def available(self) -> bool:
        """Return whether the folder is there."""
        return self._folder.is_dir()

    def is_group(self, config_path: str) -> bool:
        """Return whether it has a folder of that name."""
        return (self._folder / config_path).is_dir()

    def is_config(self, config_path: str) -> bool:
        """Return whether it has a file of that name."""
        return self.file(config_path) is not None

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Return the groups and the configs of a group."""
        found: list[str] = []
        for entry in (self._folder / config_path).iterdir():
            if entry.is_dir() and results_filter in (None, ObjectType.GROUP):
                found.append(entry.name)
            if entry.suffix in SUFFIXES and results_filter in (None, ObjectType.CONFIG):
                found.append(entry.stem)
        return sorted(set(found))


def _defaults(primary: YamlFile) -> list[Any]:
    """Return the list of defaults of `runner.yaml`, with ours for what it does not choose."""
    theirs = primary.content.get("defaults") or []
    own = chosen_groups(primary)
    usual = chosen_groups(read(shipped_folder() / f"{PRIMARY}.yaml"))
    choices = [{group: own.get(group, option)} for group, option in usual.items()]
    others = [entry for entry in theirs if not (isinstance(entry, dict) and own.keys() & entry)]
    others = [entry for entry in others if entry not in (PRIMARY, SCHEMA)]  # they are there anyway
    last = [] if "_self_" in others else ["_self_"]
    return [SCHEMA, *choices, *others, *last]


def _shape_problems(yaml_file: YamlFile, group: str) -> Iterator[Problem]:
    """Yield a problem for each list where a mapping belongs, or the reverse: Hydra merges none."""
    content = yaml_file.content
    if "hydra" in content:
        hint = "run_dir sets where records go, cluster.env and task.env variables, -m makes a sweep"
        message = "settings of Hydra have no effect on a launch"
        yield Problem(yaml_file.place("hydra"), message, hint)
    if not isinstance(content.get("defaults") or [], list):
        example = "[base]" if group else "[{cluster: mine}, {task: train}]"
        yield Problem(yaml_file.place("defaults"), "must be a list", f"such as defaults: {example}")
    section = section_of(keys_of(Spec)[group]) if group in GROUPS else Spec
    if section is not None and "/" not in group:
        yield from _wrong_shapes(yaml_file, content, section, "")


def _wrong_shapes(
    yaml_file: YamlFile, content: Mapping[str, Any], section: type, before: str
) -> Iterator[Problem]:
    for name, option in keys_of(section).items():
        value = content.get(name)
        usual = written_default(option)
        nested = section_of(option)
        key = f"{before}{name}"
        if nested and isinstance(value, dict):
            yield from _wrong_shapes(yaml_file, value, nested, f"{key}.")
        elif name in GROUPS and isinstance(value, str):
            hint = f"under `defaults:` write `- {name}: {value}`"
            yield Problem(yaml_file.place(key), "takes a mapping of keys to values", hint)
        elif isinstance(usual, dict) and isinstance(value, list):
            example = "such as nodes: {gpu1: {}, gpu2: {host: 10.0.0.2}}" if name == "nodes" else ""
            yield Problem(yaml_file.place(key), "takes a mapping of keys to values", example)
        elif isinstance(usual, list) and isinstance(value, dict):
            yield Problem(yaml_file.place(key), "takes a list", f"such as {name}: [a, b]")


def chosen_groups(primary: YamlFile) -> dict[str, Any]:
    """Return the files that `runner.yaml` chooses, by the group."""
    entries = primary.content.get("defaults") or []
    pairs = [pair for entry in entries if isinstance(entry, dict) for pair in entry.items()]
    return {name: option for name, option in pairs if name in GROUPS}


class ConfigFiles:
    """The YAML files of several folders; the first folder that has a file wins."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.folders = folders
        self.sources = [YamlSource("user", f"runner://{folder}") for folder in folders]

    def find(self, config: str) -> list[Path]:
        """Return the files of a config, the one that wins first."""
        if config in YamlSource.given:
            return [YamlSource.given[config]]
        return [file for source in self.sources if (file := source.file(config))]

    @property
    def has_own(self) -> bool:
        """Whether the user has a folder of YAML."""
        return len(self.folders) > 1

    def options(self, group: str, *, own_only: bool = False) -> list[str]:
        """Return the options of a group that have a file, the user's own before the shipped."""
        folders = self.folders[:-1] if own_only else self.folders
        names = [file.stem for folder in folders for file in _files(folder / group)]
        return list(dict.fromkeys(names))

    def shadows(self, configs: Sequence[str]) -> Iterator[str]:
        """Yield a note for each config whose file shadows another."""
        for config in configs:
            files = self.find(config)
            if len(files) > 1:
                yield f"{config}: {files[0]} (shadows {' and '.join(map(str, files[1:]))})"
