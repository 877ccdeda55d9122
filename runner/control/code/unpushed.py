"""Warnings of files that a program may open and that are not pushed: ignored ones, checkpoints."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from runner.control.code.worktree import WorkTree, is_no_code
from runner.core.text import join_some

NO_DATA = re.compile(
    r"\..*|__pycache__|node_modules|.*\.egg-info|build|dist|htmlcov|site-packages|env|venv"
)
"""Folders that programs do not open by themselves: caches, environments, what builds make."""

MAX_LISTED = 6

CONTINUES = {"resume", "resumed", "restore", "restart", "continue"}
LOADS = {"load", "reload", "init", "pretrained", "weights"}
"""Parts of the names of arguments by which a program continues an earlier run, or may do so."""

OTHERWISE = {"every", "after", "on", "interval", "freq", "max", "output", "out", "save", "export"}
"""Parts of names that say when to do so in this run, or where to write to."""

CHECKPOINT = re.compile(r"checkpoint|ckpt|snapshot|weights|pretrained", re.IGNORECASE)
HUB_NAME = re.compile(r"[\w-]+/[\w.-]+")

FILE_ENDING = re.compile(r".+\.(pt|pth|ckpt|bin|tar|pkl|safetensors)")
OFF = ("false", "no", "none", "null", "0", "")


def ignored_folders(tree: WorkTree, cwd: Path) -> list[str]:
    """Return the folders at the top of the tree, and where the user stands, that are not pushed.

    Empty ones, caches, environments and records of runs are left out.
    """
    found, root = set(), tree.root.resolve()
    for parent in {root, cwd.resolve()}:
        for entry in os.scandir(parent):
            name = os.path.relpath(entry.path, root)
            is_pushed = name in tree.folders or name in tree.links or name in tree.records
            if is_pushed or not entry.is_dir():
                continue
            if not (NO_DATA.fullmatch(entry.name) or _has_nothing(Path(entry.path))):
                found.add(name)
    return sorted(found)


def _has_nothing(folder: Path) -> bool:
    """Return whether a folder has nothing, or nothing but what the runner or a tool keeps."""
    try:
        with os.scandir(folder) as entries:  # perhaps a million of them
            return is_no_code(folder) or all(is_no_code(Path(entry.path)) for entry in entries)
    except OSError:
        return False


def notes(tree: WorkTree, cwd: Path, args: Sequence[str]) -> Iterator[str]:
    """Yield what the user should know about files that a task with these arguments may open."""
    if folders := ignored_folders(tree, cwd):
        named = join_some([f"{folder}/" for folder in folders], MAX_LISTED)
        verb = "stays" if len(folders) == 1 else "stay"
        yield (
            f"ignored, so {named} {verb} here: a program on the hosts opens such files by absolute "
            "paths of theirs"
        )
    for word, path in relative_checkpoints(args):
        name = os.path.relpath(cwd.resolve() / path, tree.root.resolve())
        if name in tree.files or name in tree.folders or name in tree.links:
            continue
        yield (
            f"{word} is looked for in the working copy of this run, which has nothing of earlier "
            "runs: have checkpoints written to a folder outside of it, and name that by its "
            "absolute path"
        )


def relative_checkpoints(args: Sequence[str]) -> list[tuple[str, str]]:
    """Return the arguments, as typed, that name a checkpoint by a relative path, and the paths.

    None if nothing in the arguments says that an earlier run is continued.
    """
    settings = list(_settings(args))
    if not any(_says_to_continue(name, value) for name, value, _ in settings):
        return []
    return [(word, value) for name, value, word in settings if _names_checkpoint(name, value)]


def _says_to_continue(name: str, value: str) -> bool:
    if value.lower() in OFF:
        return False
    is_switch = bool(_parts(name) & CONTINUES) and not _parts(name) & OTHERWISE
    if is_switch or value.lower() in CONTINUES:
        return True
    return bool(_parts(name) & LOADS) and _names_checkpoint(name, value)


def _names_checkpoint(name: str, value: str) -> bool:
    """Return whether an argument is the relative path of a checkpoint; a model's name is none."""
    parts = _parts(name)
    if parts & OTHERWISE or not (parts & (CONTINUES | LOADS) or CHECKPOINT.search(name)):
        return False
    may_be_on_a_hub = bool(parts & LOADS) and not FILE_ENDING.fullmatch(value)
    return _is_relative_path(value) and not (may_be_on_a_hub and HUB_NAME.fullmatch(value))


def _parts(name: str) -> set[str]:
    return {*re.split(r"[._-]", name.lower())}


def _settings(args: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield name, value and words of `--name value`, `--name=value` and `name=value`."""
    for index, word in enumerate(args):
        name, equals, value = word.partition("=")
        following = args[index + 1] if index + 1 < len(args) else ""
        if equals:
            yield name.lstrip("-+"), value, word
        elif word.startswith("-"):
            has_value = bool(following) and not following.startswith("-")
            typed = f"{word} {following}" if has_value else word
            yield name.lstrip("-"), following if has_value else "true", typed


def _is_relative_path(value: str) -> bool:
    if not value or value[0] in "/~$-" or "://" in value:
        return False
    return "/" in value or FILE_ENDING.fullmatch(PurePosixPath(value).name) is not None
