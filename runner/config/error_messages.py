"""Error messages: the errors of Hydra, OmegaConf and YAML as problems with a place and a hint."""

from __future__ import annotations

import dataclasses
import functools
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.default_element import ResultDefault
from hydra.errors import (
    CompactHydraException,
    ConfigCompositionException,
    HydraException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException

from runner.config.gone import KEYS
from runner.config.hydra_settings import open_schema, with_defaults
from runner.config.overrides import hydra_value, names_file, override_key, parse_overrides
from runner.config.schema import GROUPS, SECTIONS, RunnerConfig
from runner.config.search_path import ConfigFiles, display_path, syntax_problem, unmarked_file
from runner.config.validation import join_or, suggest, unknown_key
from runner.core.errors import ConfigError, Problem
from runner.core.shell import this_program

ROOTS = [*(option.name for option in dataclasses.fields(RunnerConfig)), "hydra"]
ENV_KEY = re.compile(r"(?:task|cluster|cluster\.nodes\.[^.]+)\.env\.")
"""A variable of an environment, which takes no list."""

ENV_COPY = "hydra.job.env_copy"


def unresolved_problem(key: str, error: OmegaConfBaseException) -> Problem:
    """Return the problem of a value that cannot be resolved."""
    if isinstance(error, MissingMandatoryValue):
        return Problem(key, "must be set: the YAML says ???", f"such as {key}=VALUE")
    text = _first_line(error)
    if match := re.search(r"Environment variable '([^']+)' not found", text):
        hint = f"export {match[1]}=… first, or give a default: ${{oc.env:{match[1]},DEFAULT}}"
        return Problem(key, f"{match[1]} is not set in this shell's environment", hint)
    hint = "${a.b} is the full key of another value, ${.b} a neighbour; ${X} of a shell is \\${X}"
    return Problem(key, lower_first(text), hint)


def resolve_to_plain(
    node: Any,
    where: str,
    problems: list[Problem],
    is_wanted: Callable[[str], bool] = lambda _: True,
) -> Any:
    """Return a config as plain data, resolved; add what cannot be resolved to `problems`.

    Keys that are not wanted, by their full names, are neither resolved nor returned.
    """
    if isinstance(node, DictConfig):
        pairs = [(key, str(key)) for key in node]
    elif isinstance(node, ListConfig):
        pairs = [(index, str(index)) for index in range(len(node))]
    else:
        return node
    result = {}
    for key, name in pairs:
        full_key = f"{where}.{name}" if where else name
        if not is_wanted(full_key):
            continue
        try:
            value = node[key]
        except OmegaConfBaseException as error:
            problem = unresolved_problem(full_key, error)
            if problem.message not in {earlier.message for earlier in problems}:
                problems.append(problem)
        else:
            result[name] = resolve_to_plain(value, full_key, problems, is_wanted)
    return result if isinstance(node, DictConfig) else list(result.values())


def explain_error(error: Exception, files: ConfigFiles, overrides: Sequence[str]) -> Problem:
    """Return the problem of an error that Hydra raised while composing `overrides`."""
    cause = error.__cause__ or error.__context__
    if isinstance(error, OverrideParseException):
        return _unreadable_override(error)
    if isinstance(error, MissingConfigException):
        return _missing_option(error, files, overrides)
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        return syntax_problem(error, error.problem_mark)
    if isinstance(error, ConfigCompositionException) and isinstance(cause, OmegaConfBaseException):
        return _refused_value(error, cause, files, overrides)
    detail = cause if isinstance(cause, OmegaConfBaseException) else error
    if file := _unreadable_file(error, files, overrides):
        reason = getattr(detail, "strerror", None) or _first_line(detail)
        return Problem(display_path(file), f"cannot be read: {lower_first(reason)}")
    return _other_error(error, files, overrides)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def lower_first(text: str) -> str:
    """Return a text that begins with a small letter."""
    return text[:1].lower() + text[1:]


def _unreadable_override(error: OverrideParseException) -> Problem:
    word = error.override
    key, equals, value = word.partition("=")
    if not equals:
        message = "neither KEY=VALUE nor a flag"
        hint = f"`{this_program()} --help` shows what there is"
        return Problem(word, message, f"task.script={word}" if names_file(word) else hint)
    if "[" in key:
        message = "a key cannot be a range"
        return Problem(word, message, "set one node, or edit the YAML")
    try:
        parse_overrides([f"{key}=1"])
    except HydraException:
        rule = "keys are joined by dots, and such a part starts with a letter"
        return Problem(word, f"{key!r} is no key; {rule}", "set it in the YAML")
    quoted = f"{key}={hydra_value(value)}" if value[:1] not in "[{" else f'{key}=["a (b)", c]'
    hint = f"quote text for Hydra, and the whole for the shell:\n  {shlex.quote(quoted)}"
    return Problem(word, "the value is not in the grammar of Hydra's overrides", hint)


def _missing_option(
    error: MissingConfigException, files: ConfigFiles, overrides: Sequence[str]
) -> Problem:
    name = error.missing_cfg_file or ""
    group, _, option = name.rpartition("/")
    if (choice_text := f"{group}={option}") in KEYS:
        return Problem(choice_text, f"is gone; {KEYS[choice_text]}")
    parent = re.match(r"In '([^']+)'", str(error))
    choice = re.compile(rf"\+?{re.escape(group)}(@[^=]*)?=.*{re.escape(option)}")
    choosing_words = list(filter(choice.match, overrides))
    sources = [display_path(file) for file in files.find(parent[1])] if parent else []
    folders = [folder / group for folder in files.folders if (folder / group).is_dir()]
    stems = {file.stem for folder in folders for file in folder.glob("*.yaml")}
    shipped_schema = {"base"} if group in GROUPS else set()
    options = error.options or sorted(shipped_schema | stems)
    hint = [suggest(option, options, f"{group}=")]
    if group == "task" and names_file(option):
        hint[0] = f"a program's file is task.script={option}"
    elif group in ("cluster", "task") and choosing_words and not hint[0]:
        hint[0] = f"`{this_program()} init --{group} {option}` writes one"
    hint += [f"looked in {' and '.join(map(display_path, folders))}"] if folders else []
    if file := unmarked_file(name):
        conf = display_path(file.parents[len(Path(name).parts) - 1])
        hint += [f"not in {conf}, which is another program's: an empty {conf}/runner.yaml adds it"]
    message = (
        f"there is no {group or 'config'} {option!r}; there are {', '.join(options) or 'none'}"
    )
    where = next(iter([*choosing_words[-1:], *sources]), group)
    return Problem(where, message, "\n".join(filter(None, hint)))


def _refused_value(
    error: ConfigCompositionException,
    cause: OmegaConfBaseException,
    files: ConfigFiles,
    overrides: Sequence[str],
) -> Problem:
    """Return the problem of a value that the schema refuses, in a file or an override."""
    if cause.full_key == "_dummy_":  # Hydra's key for an entry of a list of defaults
        return unresolved_problem("defaults", cause)
    config = re.match(r"In '([^']+)'", str(error))
    key = str(cause.full_key or "") or (_mismatched_key(config[1], files) if config else "")
    if config:
        return _refused_in_file(cause, key, config[1], files)
    broken = _unreadable_file(cause, files, overrides)
    return _refusal(cause, key, f"{display_path(broken)}: {key}" if broken else key)


def with_all_refused(
    error: ConfigCompositionException,
    files: ConfigFiles,
    defaults_list: Callable[[], Sequence[ResultDefault]],
) -> Exception:
    """Return the error as one with every value in a file that the schema refuses.

    Hydra stops at the first.
    """
    if not str(error).startswith("In '"):
        return error
    problems = []
    for layer in defaults_list():
        config, package = layer.config_path or "", filter(None, (layer.package or "").split("."))
        content = _read_mapping(files, config)
        content.pop("defaults", None)
        content.pop("hydra", None)
        for key, cause in _refusals(tuple(package), content):
            problems.append(_refused_in_file(cause, key, config, files))
    return ConfigError(problems) if problems else error


def _refusals(path: tuple[str, ...], value: object) -> Iterator[tuple[str, OmegaConfBaseException]]:
    """Yield the keys that the schema refuses with their values, as far down as it does."""
    nested = functools.reduce(lambda inner, part: {part: inner}, reversed(path), value)
    try:
        with_defaults(nested)
    except OmegaConfBaseException as cause:
        pairs = value.items() if isinstance(value, dict) else ()
        inner = [found for key, item in pairs for found in _refusals((*path, str(key)), item)]
        yield from inner or [(".".join(path), cause)]


def _refused_in_file(
    cause: OmegaConfBaseException, key: str, config: str, files: ConfigFiles
) -> Problem:
    file = next(iter(files.find(config)), Path(config))
    return _refusal(cause, key, files.locate_key(key, [config]) if key else display_path(file))


def _refusal(cause: OmegaConfBaseException, key: str, where: str) -> Problem:
    legal = cause.object_type
    if isinstance(cause, (ConfigKeyError, AttributeError)) and dataclasses.is_dataclass(legal):
        parent, _, name = key.rpartition(".")
        names = [option.name for option in dataclasses.fields(legal)]
        return dataclasses.replace(unknown_schema_key(parent, name, names), subject=where)
    text = lower_first(_first_line(cause))
    for pattern, replacement in OMEGACONF_MESSAGES.items():
        text = re.sub(pattern, replacement, text, flags=re.IGNORECASE)
    if text == MISMATCH and key and isinstance(OmegaConf.select(open_schema(), key), DictConfig):
        text = "takes a mapping of keys to values"
    return Problem(where, text, KEY_HINTS.get(key, ""))


def unknown_keys(
    values: Mapping[str, Any], schema: type = RunnerConfig, where: str = ""
) -> Iterator[Problem]:
    """Yield a problem for each key that the schema does not have."""
    fields: dict[str, Any] = {f.name: f.default_factory for f in dataclasses.fields(schema)}
    for key, value in values.items():
        nested = fields.get(key)
        if key not in fields:
            yield unknown_schema_key(where, key, list(fields))
        elif isinstance(nested, type) and dataclasses.is_dataclass(nested):
            yield from unknown_keys(value, nested, f"{where}.{key}" if where else key)


def unknown_schema_key(where: str, key: str, legal: Sequence[str]) -> Problem:
    """Return the problem of an unknown key, with the section where it may belong."""
    problem = unknown_key(where, key, legal)
    if problem.hint or problem.subject in KEYS or where not in ("", "task"):
        return problem
    sections = [name for name in SECTIONS if name and "NODE" not in name]
    has_key = [n for n in sections if any(f.name == key for f in dataclasses.fields(SECTIONS[n]))]
    hint = f"if it is for the program: task.args.{key}=…"
    if has_key:
        hint = f"did you mean {join_or([f'{section}.{key}' for section in has_key])}?"
    return dataclasses.replace(problem, hint=hint)


KEY_HINTS = {
    "cluster.nodes": "such as nodes: {gpu1: {}, gpu2: {host: 192.168.1.110}}",
    "deploy": "cluster.project says whether code is pushed: null pushes it",
}

MISMATCH = "a list is given where a mapping is expected, or a mapping for a list"

OMEGACONF_MESSAGES = {
    r"value ('.*') of type .* converted to Integer": r"must be a whole number, not \1",
    r"value ('.*') of type .* converted to Float": r"must be a number, not \1",
    r"value ('.*') is not a valid bool.*": r"must be true or false, not \1",
    r"cannot convert '\w+' to string: '(.*)'": r"must be a text, not \1",
    r".*(is not Optional|Incompatible value 'None').*": "must not be null",
    r"invalid type assigned: .* value: (.*)": r"takes a mapping of keys to values, not \1",
    r"cannot assign (\w+) to Dict.*": r"takes a mapping of keys to values, not \1",
    r"(cannot merge|merge error).*": MISMATCH,
}
"""OmegaConf's messages for values of a wrong type, and ours."""


def _mismatched_key(config: str, files: ConfigFiles) -> str:
    """Return the key that is a list here and a mapping below, or the reverse, or ""."""
    group = config.rpartition("/")[0]
    schema = OmegaConf.to_container(OmegaConf.structured(SECTIONS.get(group, RunnerConfig)))
    content, pending = _read_mapping(files, config), [config]
    bases = [schema if isinstance(schema, dict) else {}]
    for name in pending:
        bases.append(base := _read_mapping(files, name))
        parents = [entry for entry in base.get("defaults") or () if isinstance(entry, str)]
        parents = [f"{group}/{parent}".lstrip("/") for parent in parents]
        pending += [parent for parent in parents if parent not in pending]
    keys = (_first_mismatch(content, base) for base in bases)
    key = next(filter(None, keys), "")
    return f"{group}.{key}".lstrip(".") if key else ""


def _read_mapping(files: ConfigFiles, config: str) -> dict[Any, Any]:
    """Return the content of a YAML file that was read before."""
    file = next(iter(files.find(config)), None)
    content = yaml.safe_load(file.read_text(encoding="utf-8")) if file else None
    return content if isinstance(content, dict) else {}


def _first_mismatch(content: Mapping[Any, Any], base: Mapping[Any, Any]) -> str:
    for key, value in content.items():
        other = base.get(key)
        if isinstance(value, dict) and isinstance(other, dict):
            if inner := _first_mismatch(value, other):
                return f"{key}.{inner}"
        elif (isinstance(other, dict) and value is not None) or (
            isinstance(value, dict) and isinstance(other, list)
        ):
            return str(key)
    return ""


def _unreadable_file(error: Exception, files: ConfigFiles, overrides: Sequence[str]) -> Path | None:
    """Return the file whose reading fails with this error: Hydra does not say which it is."""
    if isinstance(error, OSError) and error.filename:
        return Path(error.filename)
    candidates = [file for folder in files.folders for file in sorted(folder.rglob("*.yaml"))]
    candidates.sort(key=lambda file: f"{file.parent.name}={file.stem}" not in overrides)
    for file in candidates:
        try:
            OmegaConf.load(file)
        except (OSError, ValueError, yaml.YAMLError, OmegaConfBaseException) as own_error:
            if (type(own_error), str(own_error)) == (type(error), str(error)):
                return file
    return None


def _undeletable_key(key: str, overrides: Sequence[str]) -> Problem:
    """Return the problem of ~KEY for a key that the configuration does not have."""
    word = next((word for word in overrides if word[1:] == key), f"~{key}")
    if not key:
        return Problem(word, "names no key", "~KEY takes a key out, such as ~task.args.lr")
    parent, _, name = key.rpartition(".")
    if parent == "cluster.nodes":
        hint = f"leave a node out with cluster.exclude=[{name}]"
        return Problem(word, f"the YAML has no node {name}", hint)
    if parent in SECTIONS:
        names = [option.name for option in dataclasses.fields(SECTIONS[parent])]
        return dataclasses.replace(unknown_schema_key(parent, name, names), subject=word)
    message = f"there is no {key} to take out"
    return Problem(word, message, f"`{this_program()} config` shows what there is")


def _other_error(error: Exception, files: ConfigFiles, overrides: Sequence[str]) -> Problem:
    """Return the message of Hydra: its first line, and the rest as the hint."""
    if isinstance(error, OmegaConfBaseException):
        return unresolved_problem(str(error.full_key or "configuration"), error)
    env_copy = files.locate_key(ENV_COPY, ["runner"])
    if type(error) is KeyError and env_copy != ENV_COPY:  # Hydra looks names up in it
        message = f"{error.args[0]} is not set in this shell's environment"
        return Problem(env_copy, message, "cluster.pass_env=[NAME] copies variables to the ranks")
    text = str(error).strip() or type(error).__name__
    first, _, rest = text.partition("\n")
    if match := re.fullmatch(r"(?:Ambiguous value for argument|Sweep parameters) '(.*)'.*", first):
        key, _, value = match[1].partition("=")
        if (root := re.split(r"[./@]", key.lstrip("+"))[0]) not in ROOTS:
            return dataclasses.replace(unknown_schema_key("", root, ROOTS), subject=key)
        hint = f"as one text: {shlex.quote(f'{key}={hydra_value(value)}')}"
        if not ENV_KEY.match(key):
            hint = f"as a list: {shlex.quote(f'{key}=[{value}]')}\n{hint}"
        return Problem(match[1], "several values need --multirun, which makes a run of each", hint)
    if not isinstance(error, CompactHydraException):
        rest += "\nHYDRA_FULL_ERROR=1 shows where in Hydra this comes from"
    if match := re.match(r"Could not delete (?:from config\. )?'([^']*)'", first):
        return _undeletable_key(match[1], overrides)
    keys = {override_key(word): word for word in overrides}
    subjects = [word for key, word in keys.items() if f"'{key}'" in first or word in first]
    if file_match := re.search(r"\bin '?([\w/.-]+)'?[:,]", first, re.IGNORECASE):
        subjects = [display_path(file) for file in files.find(file_match[1])]
    subject = next(iter(subjects), "configuration")
    return Problem(subject, lower_first(first).rstrip("."), rest.strip())
