"""OpenSSH's configuration files: whether they treat all hosts alike (ssh_config(5))."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path

SYSTEM_CONFIG = "/etc/ssh/ssh_config"

_BY_HOST = ("match", "hostname", "hostkeyalias")
_PLAIN_NAME = re.compile(r"[a-z0-9][a-z0-9._:-]*")
_MAX_DEPTH = 16  # of files that include others, as in OpenSSH


def treat_all_alike(files: Sequence[str]) -> bool:
    """Return whether what `ssh -G HOST` prints differs in the host's name alone.

    False in any doubt: a file that cannot be read, a token such as `%h`, canonical names.
    """
    return all(_is_uniform(file, 0) for file in files)


def is_plain_name(host: str) -> bool:
    """Return whether OpenSSH takes the name of a host as it is."""
    return bool(_PLAIN_NAME.fullmatch(host))


def _is_uniform(file: str, depth: int) -> bool:
    try:
        text = Path(file).read_text(encoding="utf-8")
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False
    return depth < _MAX_DEPTH and all(_is_plain_line(line, depth) for line in text.splitlines())


def _is_plain_line(line: str, depth: int) -> bool:
    found = re.match(r"\s*([^\s=#]+)[\s=]*(.*?)\s*$", line)
    if found is None:  # blank, or a comment
        return True
    keyword, value = found[1].lower(), found[2]
    if keyword == "include":
        return _is_uniform_include(value, depth)
    by_host = keyword in _BY_HOST or keyword.startswith("canonical") or "%" in value
    return not by_host and (keyword != "host" or value == "*")


def _is_uniform_include(value: str, depth: int) -> bool:
    if any(character in value for character in " \t\"'~$%") or not value.startswith("/"):
        return False
    return all(_is_uniform(file, depth + 1) for file in glob.glob(value))  # noqa: PTH207
