"""Words of a command line: which verb or launch they are for, and what mistyped ones may mean."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from pathlib import Path

from runner.config.words import as_word, is_override, names_file
from runner.core.errors import ConfigError, Problem
from runner.core.shell import this_program
from runner.core.spec import GROUPS, Spec, keys_of, section_of
from runner.ui.output import note
from runner.verbs import LAUNCH, verb_names

OTHER_LINES = "docs/command-lines.md has lines of other launchers, with ours beside them"
OTHERS = {
    "follow|tail|watch": "did you mean attach?",
    "push|sync|upload": "did you mean deploy?",
    "pdsh|shell|ssh": "did you mean exec?",
    "create|new|setup": "did you mean init?",
    "run|start|submit|train": "did you mean launch?",
    "jobs|list|ls|status": "did you mean ps?",
    "download|fetch|get": "did you mean pull?",
    "cancel|kill|scancel|terminate": "did you mean stop?",
    "repeat|restart|resume|retry": "did you mean rerun=latest?",
    r"torchrun|accelerate|deepspeed|python[\d.]*|mpirun|mpiexec|horovodrun|torchx|srun|sbatch"
    r"|docker|podman|apptainer|singularity": OTHER_LINES,
    r"--?(nnodes|nproc[-_]per[-_]node|node[-_]rank|master[-_](addr|port)|rdzv[-_]\w+|standalone"
    r"|num[-_](machines|processes|nodes|gpus)|nodes|gpus|np|n|hosts|hostfile)": OTHER_LINES,
}
"""What is typed for other programs, and the hint to what does the same here."""

FLAGS_WITH_VALUE = ("--cluster", "--set", "--config-dir", "-cd")
EXAMPLES = {"rerun": "latest", "cluster": "NAME", "task": "NAME", "dry_run": "true"}
"""Values of keys that are typed without one."""


def with_verb(words: Sequence[str]) -> list[str]:
    """Return words with the verb first, which is `launch` where none is named."""
    names_verb = bool(words) and words[0] in verb_names()
    return list(words) if names_verb else [LAUNCH, *words]


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words for us, with the verb first, and those for the program.

    The latter follow `--`, or in a launch the file of the program; raise ConfigError for a line
    that begins with no word of ours.
    """
    end = words.index("--") if "--" in words else len(words)
    verb, *ours = with_verb(words[:end])
    if verb != LAUNCH:
        return [verb, *ours], [*words[end + 1 :]]
    first = ours[0] if ours else "-"
    if not (first.startswith("-") or is_override(first) or _is_program(first)):
        after = ours[1] if len(ours) > 1 else ""
        raise ConfigError([misplaced_word(first, after, is_first=True)])
    for index, word in enumerate(ours):
        is_value = index > 0 and ours[index - 1] in FLAGS_WITH_VALUE
        if is_value or not _is_program(word):
            continue
        rest = [*ours[index + 1 :], *words[end:]]
        if rest[:1] == ["--"]:
            rest = rest[1:]
        if flag := next((each for each in FLAGS_WITH_VALUE if each in rest), ""):
            note(f"{flag} after {word} is for {word}; flags of ours come before it")
        return [verb, *ours[:index], as_word("task.script", word)], rest
    return [verb, *ours], [*words[end + 1 :]]


def _is_program(word: str) -> bool:
    return re.fullmatch(r"[^-=~+][^=]*\.py", word) is not None


def misplaced_word(word: str, after: str, *, is_first: bool = False) -> Problem:
    """Return the problem of a word of a launch that is no setting, no flag and no program."""
    if after.startswith(("-", "=")) or is_override(after):
        after = ""
    path = Path(word)
    section = keys_of(Spec).get(word.partition(".")[0])
    message = f"neither KEY=VALUE nor a {'verb' if is_first else 'flag'}"
    hint = "a setting is KEY=VALUE; words for the program come after it, or after `--`"
    elsewhere = _of_others(path.name)
    if elsewhere == OTHER_LINES:
        hint = f"`{this_program()} {after}`" if _is_program(after) else OTHER_LINES
    elif "." in word and section is not None and section_of(section):
        message = "has no value"
        hint = f"one word is both: {word}={after or 'VALUE'}"
    elif path.suffix in (".yaml", ".yml"):
        group = path.parent.name if path.parent.name in GROUPS else "cluster"
        message = "a file of YAML comes after the key that takes it"
        hint = f"such as {group}={word}"
    elif names_file(word):
        message = "is a file whose name does not end in .py"
        hint = f"Python runs it by task.script={word}, bash by task.command='[bash, {word}]'"
    elif word in verb_names():
        message = "a verb comes first"
        hint = f"`{this_program()} {word}`"
    elif elsewhere:
        hint = elsewhere
    elif meant := _meant(word, after):
        hint = f"did you mean {meant}?"
    elif is_first:
        hint = f"the verbs are {', '.join(verb_names())}; `{this_program()} --help` explains them"
    return Problem(word, message, hint)


def _of_others(word: str) -> str:
    return next((hint for pattern, hint in OTHERS.items() if re.fullmatch(pattern, word)), "")


def _meant(word: str, after: str) -> str:
    """Return the verb or the setting that a word is meant as, or ""."""
    from runner.config.source import ConfigFiles, conf_folders

    files = ConfigFiles(conf_folders([]))
    if group := next((group for group in GROUPS if word in files.options(group)), ""):
        return f"{group}={word}"
    keys = keys_of(Spec)
    keys = {name: keys[name] for name in keys if name in GROUPS or not section_of(keys[name])}
    near = [word] if word in keys else difflib.get_close_matches(word, [*verb_names(), *keys], n=1)
    if not near or near[0] not in keys:
        return "".join(near)
    example = "true" if keys[near[0]].default is False else EXAMPLES.get(near[0], "VALUE")
    return f"{near[0]}={after or example}"


def unknown_flag(verb: str, flag: str, flags: Sequence[str]) -> str:
    """Return what may be meant by a flag that a verb has not, or ""."""
    near = difflib.get_close_matches(flag, flags, n=1, cutoff=0.75)
    near = near or [each for each in flags if each.startswith(f"-{flag.lower()}")]
    if near:
        return f"did you mean {near[0]}?"
    if verb != LAUNCH:
        return "the command comes after `--`" if verb == "exec" else ""
    key = flag.lstrip("-").replace("-", "_")
    if key in keys_of(Spec):
        return f"settings are written KEY=VALUE: {_meant(key, '')}"
    program = f"an argument of the program is task.args.{key}=..., or comes after its file or `--`"
    return _of_others(flag) or program
