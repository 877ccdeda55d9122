"""Suggestions for words of a command line that are neither settings, flags nor verbs."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Collection, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import TYPE_CHECKING

from runner.config.kinds import suggest
from runner.config.source import SUFFIXES
from runner.config.words import is_override, names_file
from runner.core.errors import Problem
from runner.core.shell import this_program
from runner.core.spec import GROUPS, Spec, keys_of, section_of

if TYPE_CHECKING:
    from runner.core.launch_request import LaunchRequest

VERB_ALIASES = {"kill": "stop", "status": "ps"}
LAUNCH_WORDS = ("launch", "run")
"""Words that may begin a launch."""

_SAME_MEANING = {
    "attach": ("follow", "reattach", "tail", "watch"),
    "check": ("diagnose", "doctor", "preflight", "test", "validate", "verify"),
    "clean": ("delete", "gc", "prune", "purge", "remove", "rm"),
    "compare": ("diff", "summary", "table"),
    "config": ("cfg", "show", "view"),
    "deploy": ("push", "rsync", "sync", "upload"),
    "exec": ("cmd", "pdsh", "shell", "ssh"),
    "export": ("tensorboard", "tb"),
    "init": ("configure", "create", "new", "setup"),
    "logs": ("cat", "log", "output"),
    "ps": ("jobs", "list", "ls", "queue", "runs", "squeue"),
    "pull": ("cp", "download", "fetch", "get"),
    "stacks": ("debug", "hang", "py-spy", "trace"),
    "stop": ("abort", "cancel", "down", "end", "scancel", "terminate"),
    "top": ("gpus", "gpustat", "htop", "monitor", "nvidia-smi", "nvitop", "nvtop"),
    "why": ("explain-failure", "inspect", "reason"),
    "rerun=latest": ("again", "repeat", "restart", "resume", "retry"),
    "dry_run=true": ("dry-run", "dryrun", "plan"),
    "cluster=NAME task=NAME": ("start", "submit", "train", "up"),
}
MEANINGS = {word: meant for meant, words in _SAME_MEANING.items() for word in words}
"""What people call things elsewhere, and the word for it here."""

OTHER_LAUNCHERS = re.compile(
    r"torchrun|accelerate|deepspeed|python[\d.]*|mpirun|mpiexec|horovodrun|torchx|colossalai|fabric"
    r"|lightning|srun|sbatch|salloc|docker|podman|apptainer|singularity"
)
OTHER_LINES = "docs/command-lines.md has lines of other launchers, with ours beside them"

EXAMPLES = {"rerun": "latest", "cluster": "NAME", "task": "NAME"}
"""Values of keys that are typed without one."""

SETTINGS_HINT = "a setting is KEY=VALUE; words for the program come after `--`"


def other_launcher(words: Sequence[str]) -> Problem | None:
    """Return the problem of a line that is for another launcher; None if it is for this one."""
    typed = next((Path(word).name for word in words if not is_override(word)), "")
    if OTHER_LAUNCHERS.fullmatch(typed):
        return Problem("command line", f"{typed!r} is no word of ours: {OTHER_LINES}")
    return None


def unknown_verb(words: Sequence[str], verbs: Collection[str]) -> Problem:
    """Return the problem of a first word that is no verb."""
    word = words[0]
    message = f"{word!r} is neither KEY=VALUE nor a verb"
    meant = _meant_setting(word, words[1] if len(words) > 1 else "") or MEANINGS.get(word)
    hint = f"did you mean {meant}?" if meant else _near_verb(word, verbs)
    message += "" if hint else f"; the verbs are {', '.join(verbs)}"
    return Problem("command line", message, hint or f"`{this_program()} --help` explains them")


def _near_verb(word: str, verbs: Collection[str]) -> str:
    """Return "did you mean VERB?" for a word that is spelled like it, or like an alias of it."""
    hint = suggest(word, [*verbs, *LAUNCH_WORDS, *VERB_ALIASES])
    by_alias = {f"did you mean {alias}?": verb for alias, verb in VERB_ALIASES.items()}
    return f"did you mean {by_alias[hint]}?" if hint in by_alias else hint


def _meant_setting(word: str, after: str) -> str:
    """Return the setting that a word alone is meant as, or "": a key, or the name of a file."""
    from runner.config.source import ConfigFiles, conf_folders  # noqa: PLC0415 (brings Hydra)

    defaults = {name: option.default for name, option in keys_of(Spec).items()}
    if word not in EXAMPLES and defaults.get(word, MISSING) is MISSING:  # as a section's is
        files = ConfigFiles(conf_folders([]))
        return next((f"{g}={word}" for g in GROUPS if word in files.options(g)), "")
    value = "" if after.startswith("-") or is_override(after) else after
    example = "true" if isinstance(defaults[word], bool) else EXAMPLES.get(word, "VALUE")
    return f"{word}={value or example}"


def misplaced_words(words: Sequence[str], verbs: Collection[str]) -> list[Problem]:
    """Return a problem for each word of a launch that is no override, in the order typed."""
    for key, equals, value in zip(words, words[1:], words[2:], strict=False):
        if equals == "=":
            message = f"{key} = {value} is three words, and a setting is one"
            return [Problem("command line", message, f"without the blanks: {key}={value}")]
    problems = []
    for word, after in itertools.zip_longest(words, words[1:], fillvalue=""):
        if is_override(word):
            continue
        message, hint = f"{word!r} is neither KEY=VALUE nor a flag", SETTINGS_HINT
        if meant := _meant_setting(word, after):
            hint = f"did you mean {meant}? otherwise {SETTINGS_HINT}"
        if looks_like_key(word):
            value = "VALUE" if not after or is_override(after) else after
            message, hint = f"{word!r} has no value", f"one word is both: {word}={value}"
        elif names_file(word) and word.endswith(SUFFIXES):
            group = Path(word).absolute().parent.name
            named = [group] if group in GROUPS else ["cluster", "task"]
            hint = f"a file of YAML is {' or '.join(f'{group}={word}' for group in named)}"
        elif names_file(word):
            hint = f"a program to run is task.script={word}, and its arguments come after `--`"
        elif word in verbs or word in VERB_ALIASES:
            hint = f"a verb comes first: {this_program()} {word}"
        problems.append(Problem("command line", message, hint))
    return problems


def looks_like_key(word: str) -> bool:
    """Return whether a word has the form of a key of the configuration, such as task.args.lr."""
    is_path = re.fullmatch(r"\w+(\.[\w-]+)+", word) is not None
    option = keys_of(Spec).get(word.partition(".")[0])
    return is_path and option is not None and section_of(option) is not None


def unused_program(request: LaunchRequest) -> str:
    """Return that a launch which names no task runs another program than the one here, or ""."""
    name = next(filter(names_file, ("train.py", "main.py")), "")
    if request.names_program or not name:
        return ""
    shipped = f"this runs {request.spec.task.name}, which comes with the runner"
    return f"{shipped}; task.script={name} runs {name}"


def missing_script(spec: Spec) -> str:
    """Return where a script may be that is not here: beside `conf` further up, or spelled so."""
    from runner.config.source import conf_folders  # noqa: PLC0415 (brings Hydra)

    script, project = spec.task.target, conf_folders([])[0].parent
    is_taken_from_here = spec.pushes_code or spec.cluster.project == str(Path.cwd())
    is_missing = spec.task.kind == "script" and is_taken_from_here and not Path(script).exists()
    is_above = project in Path.cwd().parents and names_file(str(project / script))
    if not is_missing:
        return ""
    if not is_above:
        names = [str(path) for path in Path(script).parent.glob("*") if path.is_file()]
        near = suggest(str(Path(script)), names)
        return near and f"{script} is not here; {near}"
    above = os.path.relpath(project)
    return f"{script} is in {above}, beside conf, and not here: cd {above}"
