"""Layers: the files and words that a configuration was composed of; the last one wins."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.errors import MissingConfigException, OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from runner.config import rerun, words
from runner.config.kinds import Problems
from runner.config.source import ConfigFiles, KeyPath, confs_upwards, display_path, nest, read
from runner.core.errors import Problem, suggest
from runner.core.shell import this_program
from runner.core.spec import GROUPS

RECORD = "_rerun_"
"""The name of a record for Hydra; no file of a user has it."""


@dataclass(frozen=True)
class Layer:
    """One source of values; later layers win over earlier ones."""

    config: str  # its name for Hydra, "" for a word
    place: str  # a file, or a word
    content: Any  # from the top of the configuration
    lines: Mapping[KeyPath, int] = field(default_factory=dict)

    def line(self, keys: KeyPath) -> int:
        """Return the line of a key, or of the nearest key above it."""
        lines = (self.lines.get(keys[:depth], 0) for depth in range(len(keys), 0, -1))
        return next(filter(None, lines), 0)


@dataclass(frozen=True)
class Composed:
    """A configuration, and what it was composed of."""

    config: DictConfig
    primary: str
    hydra_words: list[str]
    typed: Sequence[str]
    cluster: str  # the name of its file, as that of the task
    task: str
    files: ConfigFiles
    record: rerun.RecordedRun | None = None


def unresolved(config: Any) -> dict[str, Any]:
    """Return a configuration as plain data, with its interpolations."""
    return dict(words.plain(OmegaConf.to_container(config, resolve=False)))


def plain_values(
    node: Any,
    where: str,
    problems: Problems,
    is_wanted: Callable[[str], bool] = lambda _: True,
) -> Any:
    """Return a config as plain data, resolved; add what cannot be resolved to `problems`.

    Keys that are not wanted, by their full names, are neither resolved nor returned.
    """
    if not isinstance(node, (DictConfig, ListConfig)):
        return node
    keys: Iterable[Any] = node if isinstance(node, DictConfig) else range(len(node))
    result: dict[str, Any] = {}
    for key in keys:
        full_key = f"{where}.{key}" if where else str(key)
        if not is_wanted(full_key):
            continue
        try:
            value = node[key]
        except OmegaConfBaseException as error:
            problem = unresolved_problem(full_key, error)
            if problem.message not in {earlier.message for earlier in problems}:
                problems.append(problem)
        else:
            result[str(key)] = plain_values(value, full_key, problems, is_wanted)
    return result if isinstance(node, DictConfig) else list(result.values())


def layers_of(composed: Composed) -> list[Layer]:
    """Return every source of values of a configuration; the last one wins."""
    loader = GlobalHydra.instance().config_loader()
    given = (composed.primary, composed.hydra_words, RunMode.RUN)
    layers = []
    if composed.record:
        file = composed.record.config_file
        lines = read(file).lines
        content = unresolved(composed.record.config)
        layers.append(Layer(RECORD, display_path(file), content, lines))
    for default in loader.compute_defaults_list(*given).defaults:
        config = str(default.config_path).removesuffix(".yaml")
        package = tuple(filter(None, (default.package or "").split(".")))
        yaml_file = composed.files.loaded.get(config)
        if yaml_file and package[:1] != ("hydra",):
            lines = {(*package, *keys): line for keys, line in yaml_file.lines.items()}
            own = {name: value for name, value in yaml_file.content.items() if name != "defaults"}
            layers.append(Layer(config, display_path(yaml_file.path), nest(package, own), lines))
    for word in composed.typed:
        key, _, value = word.partition("=")
        key = words.key_of(key)
        if key not in GROUPS:
            layers.append(Layer("", f"command line: {word}", nest(words.path_of(key), value)))
    return layers


def value_at(content: Any, path: KeyPath) -> tuple[Any] | None:
    """Return what a layer has at a path, None if it has nothing there."""
    for name in path:
        if isinstance(content, Mapping) and name in content:
            content = content[name]
        elif isinstance(content, list) and name.isdecimal() and int(name) < len(content):
            content = content[int(name)]
        else:
            return None
    return (content,)


def place_of(key: str, layers: Sequence[Layer]) -> str:
    """Return `FILE:LINE: KEY` for the file that sets a key, or the key alone."""
    path = words.path_of(key)
    for layer in reversed(layers):
        if path in layer.lines:
            return f"{layer.place}:{layer.lines[path]}: {key}"
        word = layer.place.removeprefix("command line: ")
        if not layer.config and f"{key}.".startswith(f"{words.key_of(word)}."):
            break
    return key


def unresolved_problem(key: str, error: OmegaConfBaseException) -> Problem:
    """Return the problem of a value that cannot be resolved."""
    hint = "${a.b} is another key, ${.b} a neighbour, ${oc.env:X,DEFAULT} a variable of this shell"
    hint = f"{hint}; \\${{X}} is for a shell there"
    if isinstance(error, MissingMandatoryValue):
        hint = f"such as {key}=VALUE"
    return Problem(key, _sentences(error)[0], hint)


def refusal(error: Exception, files: ConfigFiles, typed: Sequence[str]) -> Problem:
    """Return what Hydra refused of these words: its sentence, the place, and the next step."""
    cause = error.__cause__ or error.__context__
    detail = cause if isinstance(cause, OmegaConfBaseException) else error
    key = str(getattr(detail, "full_key", "") or "").replace("_dummy_", "defaults")
    text, *rest = _sentences(detail)
    keys = {key, *(words.key_of(quoted) for quoted in str(error).split("'"))}
    named = [word for word in typed if words.key_of(word) in keys]
    hint = next((line for line in rest if line.startswith("To ")), "")
    if isinstance(error, OverrideParseException):
        named = [word for word in typed if words.key_of(word) == words.key_of(str(error.override))]
        text = [text, text, *rest][-2]  # before the address of a page
        hint = """quote a text for Hydra, and the whole for the shell: 'KEY=["a (b)", c]'"""
    if isinstance(error, RecursionError):
        text = "its defaults lead back to it"
        hint = "`defaults` names other files"
    if isinstance(error, MissingConfigException):
        config = error.missing_cfg_file or ""
        named = [word for word in typed if word.lstrip("+").replace("=", "/", 1) == config]
        group = words.key_of(named[-1]) if named else config.rpartition("/")[0]
        text = f"{text}; there are {', '.join(files.options(group)) or 'none'}"
        hint = _next_step(group, config[len(group) + 1 :], files)
    where = key
    if named:
        where = named[-1]
    elif files.loaded and key != "defaults":
        # Hydra names a file, or it is the one that was read last.
        match = re.search(r"[Ii]n '([^']+)'", str(error))
        last = [*files.loaded][-1]
        where = files.loaded[match[1] if match and match[1] in files.loaded else last].place(key)
    return Problem(where, text, hint or f"`{this_program()} config` prints what is there")


def _next_step(group: str, option: str, files: ConfigFiles) -> str:
    """Return where a file that is missing may be, or how it is made."""
    hints = [suggest(option, files.options(group), f"{group}=")]
    is_name = re.fullmatch(r"[a-z0-9][a-z0-9_-]*", option)
    if group == "task" and words.names_file(option):
        hints = [f"a program's file is task.script={option}"]
    elif group in ("cluster", "task") and is_name and not hints[0]:
        hints = [f"`{this_program()} init --{group} {option}` writes one"]
    folders = [display_path(folder / group) for folder in files.folders]
    hints.append(f"looked in {' and '.join(folders)}")
    others = [display_path(conf) for conf in confs_upwards() if conf not in files.folders]
    hints += [f"not in {conf}: --config-dir {conf} adds it" for conf in others]
    return "\n".join(filter(None, hints))


def _sentences(error: BaseException) -> list[str]:
    """Return the lines of an error, without the file or the exception of a resolver in front."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    sentences = []
    for line in lines:
        text = re.sub(r"^In '[^']+': ", "", line).rstrip(".")
        sentences.append(re.sub(r'^\w+ raised while resolving interpolation: "(.*)"$', r"\1", text))
    return sentences
