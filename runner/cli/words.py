"""Words of a command line: which verb or launch they are for, and what mistyped ones may mean."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Sequence
from dataclasses import MISSING
from pathlib import Path

from runner.config.gone import FLAGS, VERBS
from runner.config.kinds import suggest
from runner.config.words import as_word, is_override, names_file
from runner.core.errors import ConfigError, Problem
from runner.core.shell import this_program
from runner.core.spec import GROUPS, Spec, keys_of, section_of
from runner.ui.output import note
from runner.verbs import LAUNCH, verb_names

ALIASES = {"kill": "stop", "status": "ps", "run": LAUNCH}

MEANINGS = {
    word: meant
    for meant, words in (
        ("attach", "follow reattach watch tail"),
        ("check", "doctor preflight test validate"),
        ("clean", "delete gc prune purge rm"),
        ("deploy", "push rsync sync upload"),
        ("exec", "pdsh shell ssh"),
        ("init", "create new setup"),
        ("ps", "jobs list ls queue runs squeue"),
        ("pull", "cp download fetch get"),
        ("stop", "abort cancel end scancel terminate"),
        ("top", "gpus gpustat htop nvidia-smi nvitop"),
        ("rerun=latest", "again repeat restart resume retry"),
        ("dry_run=true", "dry-run plan"),
        ("cluster=NAME task=NAME", "start submit train up"),
        ("--version", "version"),
    )
    for word in words.split()
}
"""What people call things elsewhere, and the word for it here."""

OTHER_LAUNCHERS = re.compile(
    r"torchrun|accelerate|deepspeed|python[\d.]*|mpirun|mpiexec|horovodrun|torchx|colossalai|fabric"
    r"|lightning|srun|sbatch|salloc|docker|podman|apptainer|singularity"
)
TORCHRUN_FLAGS = re.compile(
    r"nnodes|nproc_per_node|node_rank|local_addr|master_(addr|port)|max_restarts|rdzv_\w+|standalone"
    r"|num_(machines|processes|nodes|gpus)|nodes|gpus|nproc|np|n|hosts|hostfile"
)
OTHER_LINES = "docs/command-lines.md has lines of other launchers, with ours beside them"
SETTINGS_HINT = "a setting is KEY=VALUE; words for the program come after it, or after `--`"
OUR_FLAGS = ("--cluster", "--set", "--config-dir", "-cd")
SUFFIXES = (".yaml", ".yml")
EXAMPLES = {"rerun": "latest", "cluster": "NAME", "task": "NAME", "dry_run": "true"}
"""Values of keys that are typed without one."""


def with_verb(words: Sequence[str]) -> list[str]:
    """Return words with the verb first, which is `launch` where none is named."""
    first = words[0] if words else ""
    name = ALIASES.get(first, first)
    return [name, *words[1:]] if name in verb_names() else [LAUNCH, *words]


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words for us, with the verb first, and those for the program.

    The latter follow `--`, or in a launch the file of the program; raise ConfigError for a line
    that is meant for another launcher, or begins with no word of ours.
    """
    separator = list(words).index("--") if "--" in words else len(words)
    verb, *ours = with_verb(words[:separator])
    passed_on = list(words[separator + 1 :])
    if verb != LAUNCH:
        return [verb, *ours], passed_on
    _refuse_first_word(ours)
    for index, word in enumerate(ours):
        is_value = index > 0 and ours[index - 1] in OUR_FLAGS
        if not is_value and _is_program(word):
            after = list(words[separator - len(ours) + index + 1 :])
            passed_on = after[1:] if after[:1] == ["--"] else after
            if flag := next((each for each in OUR_FLAGS if each in after), ""):
                note(f"{flag} after {word} is for {word}; flags of ours come before it")
            return [verb, *ours[:index], as_word("task.script", word)], passed_on
    return [verb, *ours], passed_on


def _is_program(word: str) -> bool:
    """Return whether a word is the file of a Python program, here or misspelled."""
    return re.fullmatch(r"[^-=~+][^=]*\.py", word) is not None


def _refuse_first_word(words: Sequence[str]) -> None:
    """Raise ConfigError for a first word that neither is a verb nor begins a launch."""
    typed = next((Path(word).name for word in words if not is_override(word)), "")
    if OTHER_LAUNCHERS.fullmatch(typed):
        raise ConfigError([Problem(typed, f"no word of ours: {OTHER_LINES}")])
    first = words[0] if words else "-"
    if first.startswith("-") or is_override(first) or _is_program(first):
        return
    if first in VERBS:
        raise ConfigError([Problem(first, f"is gone; {VERBS[first]}")])
    is_yaml = Path(first).suffix in SUFFIXES
    if looks_like_key(first) or is_yaml or names_file(first) or words[1:2] == ["="]:
        return
    verbs = [*verb_names(), *ALIASES]
    if first in verbs:
        return
    after = words[1] if len(words) > 1 else ""
    hint = ""
    if meant := _meant_setting(first, after) or MEANINGS.get(first):
        hint = f"did you mean {meant}?"
    hint = hint or suggest(first, verbs) or _near_key(first, after)
    message = "neither KEY=VALUE nor a verb"
    if not hint:
        message += f"; the verbs are {', '.join(verb_names())}"
        hint = f"`{this_program()} --help` explains them"
    raise ConfigError([Problem(first, message, hint)])


def _meant_setting(word: str, after: str) -> str:
    """Return the setting that a word alone is meant as, or "": a key, or the name of a file."""
    from runner.config.source import ConfigFiles, conf_folders

    defaults = {name: option.default for name, option in keys_of(Spec).items()}
    if word not in EXAMPLES and defaults.get(word, MISSING) is MISSING:  # as a section's is
        files = ConfigFiles(conf_folders([]))
        return next((f"{g}={word}" for g in GROUPS if word in files.options(g)), "")
    value = "" if after.startswith("-") or is_override(after) else after
    example = "true" if isinstance(defaults[word], bool) else EXAMPLES.get(word, "VALUE")
    return f"{word}={value or example}"


def _near_key(word: str, after: str) -> str:
    """Return "did you mean KEY=VALUE?" for a word that is spelled like a key."""
    near = next((key for key in keys_of(Spec) if suggest(word, [key])), "")
    meant = near and _meant_setting(near, after)
    return f"did you mean {meant}?" if meant else ""


def misplaced_words(verb: str, words: Sequence[str]) -> list[Problem]:
    """Return a problem for each word of a launch that is no override, in the order typed."""
    if verb != LAUNCH:
        return [Problem(words[0], f"{verb} takes flags alone", _flags_hint(verb))]
    for key, equals, value in zip(words, words[1:], words[2:], strict=False):
        if equals == "=":
            message = f"{key} = {value} is three words, and a setting is one"
            return [Problem(key, message, f"without the blanks: {key}={value}")]
    problems = []
    for word, after in itertools.zip_longest(words, words[1:], fillvalue=""):
        message = "neither KEY=VALUE nor a flag"
        hint = SETTINGS_HINT
        near = _near_key(word, after)
        if meant := _meant_setting(word, after):
            near = f"did you mean {meant}?"
        if near:
            hint = f"{near} otherwise {SETTINGS_HINT}"
        path = Path(word)
        if looks_like_key(word):
            message = "has no value"
            hint = f"one word is both: {word}={after or 'VALUE'}"
        elif path.suffix in SUFFIXES:
            group = path.parent.name if path.parent.name in GROUPS else ""
            message = "a file of YAML comes after the key that takes it"
            hint = f"{group}={word}" if group else f"such as cluster={word} or task={word}"
        elif names_file(word):
            message = "is a file, and no program in Python"
            hint = f"to run it: task.command=[./{word}], or task.script={word}"
        elif word in verb_names() or word in ALIASES:
            hint = f"a verb comes first: {this_program()} {word}"
        problems.append(Problem(word, message, hint))
    return problems


def looks_like_key(word: str) -> bool:
    """Return whether a word has the form of a key of the configuration, such as task.args.lr."""
    is_path = re.fullmatch(r"\w+(\.[\w-]+)+", word) is not None
    option = keys_of(Spec).get(word.partition(".")[0])
    return is_path and option is not None and section_of(option) is not None


def _flags_hint(verb: str) -> str:
    program = " ".join(filter(None, (this_program(), verb)))
    return f"`{program} --help` lists the flags"


def unknown_flag(verb: str, flag: str, flags: Sequence[str]) -> Problem:
    """Return the problem of a flag that a verb has not: it is gone, misspelled or a key."""
    if instead := FLAGS.get(flag if verb == LAUNCH else f"{verb} {flag}"):
        return Problem(flag, f"is gone; {instead}")
    flag = flag.partition("=")[0]
    near = difflib.get_close_matches(flag, flags, n=1, cutoff=0.75)
    near = near or [each for each in flags if each.startswith(f"-{flag.lower()}")]
    hint = f"did you mean {near[0]}?" if near else ""
    if not hint and verb == LAUNCH:
        hint = _meant_by_flag(flag)
    elif not hint and verb == "exec":
        hint = "the command comes after `--`"
    hints = [hint, _flags_hint(verb)]
    return Problem(flag, f"{verb or 'runner'} has no such flag", "\n".join(filter(None, hints)))


def _meant_by_flag(flag: str) -> str:
    """Return where an argument of the program goes, or how a setting is written."""
    if flag in ("--config-name", "--config-path", "-cn", "-cp"):
        return "cluster=NAME and task=NAME choose files, --config-dir=DIR where to look first"
    key = flag.lstrip("-").replace("-", "_")
    if key in keys_of(Spec):
        return f"settings are written KEY=VALUE: {_meant_setting(key, '')}"
    if TORCHRUN_FLAGS.fullmatch(key):
        return OTHER_LINES
    return f"an argument of the program is task.args.{key}=..., or comes after its file or `--`"
