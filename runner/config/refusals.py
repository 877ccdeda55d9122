"""Resolution of composed values, and the refusals of Hydra and OmegaConf with their next step."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from runner.config import words
from runner.config.kinds import Problems
from runner.config.source import ConfigFiles, confs_upwards, display_path
from runner.core.errors import ConfigError, Problem, suggest
from runner.core.shell import this_program

INTERPOLATIONS = (
    "${a.b} is another key, ${.b} a neighbour, ${oc.env:X,DEFAULT} a variable of this shell; "
    "\\${X} is for a shell there"
)


def as_config(tree: Mapping[str, Any]) -> DictConfig:
    """Return plain data as a config whose interpolations follow each other.

    Raises:
        ConfigError: One of them cannot be read.
    """
    try:
        return OmegaConf.create({**tree})
    except OmegaConfBaseException as error:
        raise ConfigError([unresolved_problem(str(error.full_key), error)]) from error


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


def unresolved_problem(key: str, error: OmegaConfBaseException) -> Problem:
    is_missing = isinstance(error, MissingMandatoryValue)
    hint = f"such as {key}=VALUE" if is_missing else INTERPOLATIONS
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
