"""Errors of Hydra and OmegaConf as one problem: their sentence, the place, and the next step."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from runner.config.kinds import suggest
from runner.config.source import ConfigFiles, YamlSource, display_path, hidden_folder, is_ours
from runner.config.words import hydra_value, is_readable, key_of, names_file
from runner.core.errors import Problem
from runner.core.shell import this_program
from runner.core.spec import GROUPS


def unresolved_problem(key: str, error: OmegaConfBaseException) -> Problem:
    """Return the problem of a value that cannot be resolved."""
    if isinstance(error, MissingMandatoryValue):
        return Problem(key, "must be set: the YAML says ???", f"such as {key}=VALUE")
    text = _first_line(error)
    if match := re.search(r"Environment variable '([^']+)' not found", text):
        hint = f"export {match[1]}=… first, or give a default: ${{oc.env:{match[1]},DEFAULT}}"
        return Problem(key, f"{match[1]} is not set in this shell's environment", hint)
    if "resolver 'hydra'" in text or "HydraConfig was not set" in text:
        hint = "${run_id} is the name of the run; task.outputs=[NAME] names what comes home"
        return Problem(key, "${hydra:…} has no value: a launch makes no folder of Hydra", hint)
    hint = "${a.b} is the full key of another value, ${.b} a neighbour; ${X} of a shell is \\${X}"
    return Problem(key, lower_first(text), hint)


def explain_error(error: Exception, files: ConfigFiles, typed: Sequence[str]) -> Problem:
    """Return the problem of an error that Hydra raised while composing these words."""
    if isinstance(error, OverrideParseException):
        read = str(error.override).lstrip("+")
        as_typed = [word for word in typed if key_of(word) == key_of(read)]
        return _unreadable_word(as_typed[-1] if as_typed else read)
    if isinstance(error, MissingConfigException):
        return _missing_option(error, files, typed)
    cause = error.__cause__ or error.__context__
    detail = cause if isinstance(cause, OmegaConfBaseException) else error
    key = str(getattr(detail, "full_key", "") or "")
    if key == "_dummy_" and isinstance(detail, OmegaConfBaseException):
        return unresolved_problem("defaults", detail)  # Hydra's key for an entry of such a list
    text = lower_first(_first_line(detail)).replace("++", "")
    config = re.search(r"In '([^']+)'", str(error))
    where = key
    if config and config[1] in YamlSource.loaded:
        file = YamlSource.loaded[config[1]]
        where = display_path(file.path)
        keys = tuple(key.split("."))
        line = file.lines.get(keys) or file.lines.get(keys[1:])
        if key:
            where = f"{where}:{line}: {key}" if line else f"{where}: {key}"
    named = [word for word in typed if key_of(word) and key_of(word) in text]
    if not where and named:
        where = named[-1]
    if "cannot merge" in text.lower() or "merge error" in text.lower():
        text = "a list is given where a mapping is expected, or a mapping for a list"
    return Problem(where, text, f"`{this_program()} config` prints what is there")


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def lower_first(text: str) -> str:
    """Return a text that begins with a small letter."""
    return text[:1].lower() + text[1:]


def _unreadable_word(word: str) -> Problem:
    key, equals, value = word.partition("=")
    if not equals:
        hint = f"`{this_program()} --help` shows what there is"
        if names_file(word):
            hint = f"task.script={word}"
        return Problem(word, "neither KEY=VALUE nor a flag", hint)
    if not is_readable(key):
        message = (
            f"{key!r} is no key; keys are joined by dots, and such a part starts with a letter"
        )
        return Problem(word, message, "set it in the YAML")
    quoted = f'{key}=["a (b)", c]' if value[:1] in ("[", "{") else f"{key}={hydra_value(value)}"
    hint = f"quote text for Hydra, and the whole for the shell:\n  {shlex.quote(quoted)}"
    return Problem(word, "the value is not in the grammar of Hydra's overrides", hint)


def _missing_option(
    error: MissingConfigException, files: ConfigFiles, typed: Sequence[str]
) -> Problem:
    name = error.missing_cfg_file or ""
    group, _, option = name.rpartition("/")
    options = error.options or files.options(group)
    choosing = [word for word in typed if key_of(word) == group and option in word]
    hints = [suggest(option, options, f"{group}=")]
    if group == "task" and names_file(option):
        hints[0] = f"a program's file is task.script={option}"
    elif group in ("cluster", "task") and choosing and not hints[0]:
        hints[0] = f"`{this_program()} init --{group} {option}` writes one"
    if option.partition(":")[0] in GROUPS:
        hints[0] = f"under `defaults:` write `- {option.replace(':', ': ', 1)}`, with a space"
    folders = [folder / group for folder in files.folders if (folder / group).is_dir()]
    if folders:
        hints.append(f"looked in {' and '.join(map(display_path, folders))}")
    if conf := hidden_folder(name, files.folders):
        shown = display_path(conf)
        reason = f"another conf/ is nearer: --config-dir {shown} adds it"
        if not is_ours(conf):
            reason = f"it is another program's: an empty {shown}/runner.yaml adds it"
        hints.append(f"not in {shown}: {reason}")
    where = choosing[-1] if choosing else group
    parent = re.match(r"In '([^']+)'", str(error))
    if not choosing and parent and parent[1] in YamlSource.loaded:
        where = display_path(YamlSource.loaded[parent[1]].path)
    what = f"there is no {group or 'config'} {option!r}"
    message = f"{what}; there are {', '.join(options) or 'none'}"
    return Problem(where, message, "\n".join(filter(None, hints)))
