r"""Line patterns: the regular expressions by which a program's own progress lines are recognised.

A pattern may come from a host, and so may the lines, so no pattern may take long on any line. It
is text with `.`, `\d`, `\s`, `\w` and sets such as `[:,]`, each of which may repeat (`+`, `*`, `?`)
unless what follows could match the same character. With that rule nothing is tried twice from one
place: with r parts that repeat, a line of n characters takes n · (n + r) steps at most.
"""

from __future__ import annotations

import re
from typing import FrozenSet, List, NamedTuple, Optional, Tuple

MAX_PATTERN, MAX_CHARS = 200, 200
"""Characters of a pattern, and of a line it is searched in: the rest of the line is cut."""

MAX_REPEATS = 12  # parts that repeat
MAX_DIGITS = 15
EXAMPLE = r"such as epoch (\d+)/(\d+)"

_SET_OPERATION = re.compile(r"\[|--|&&|~~|\|\|")
"""What Python may come to read as an operation on sets, and warns of."""

_TOKEN = re.compile(
    r"(?P<atom>\\(?:[dDwWsSt]|[^\w\s])|\[\^?\]?(?:\\[dDwWsSt]|\\[^\w\s]|[^\]\\])*\]"
    r"|[^\\\[\](){}*+?|^$])(?P<repeat>[*+?]?)"
)


class _Atom(NamedTuple):
    """What matches one character, and how often."""

    text: str
    repeat: str
    chars: FrozenSet[str]  # of those that can tell one atom from another


class LinePattern:
    """A pattern with a group for the step and perhaps one for the number of all steps."""

    def __init__(self, text: str) -> None:
        """Raise ValueError, which says why, if it is none."""
        if len(text) > MAX_PATTERN:
            raise ValueError(f"is longer than {MAX_PATTERN} characters")
        atoms = _parse(text)
        for index, atom in enumerate(atoms):
            if atom.repeat and (rival := _overlapping(atom, atoms[index + 1 :])):
                repeated = f"{atom.text}{atom.repeat}"
                raise ValueError(f"has {repeated} before {rival}, which may match the same text")
        if sum(bool(atom.repeat) for atom in atoms) > MAX_REPEATS:
            raise ValueError(f"has more than {MAX_REPEATS} parts that repeat")
        self.literal = _longest_literal(atoms).encode()
        """The longest text that is in every line it matches."""

        self._regex = re.compile(text, re.ASCII)

    def search(self, line: str) -> Optional[Tuple[int, Optional[int]]]:
        """Return the step, and the number of all steps if it is there; None for another line."""
        match = self._regex.search(line[:MAX_CHARS])
        numbers = match.groups() if match else ()
        if not numbers or not all(_is_number(number) for number in numbers):
            return None
        return int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MAX_DIGITS


def _parse(text: str) -> List[_Atom]:
    """Return the atoms of a pattern, without its groups; raise ValueError if it is not legal."""
    # What no atom of the pattern names is told from the rest by one character for all of it.
    alphabet = {*map(chr, range(128)), *text, "\uffff"}
    atoms: List[_Atom] = []
    group_count = depth = group_start = 0
    end = len(text) - (text.endswith("$") and not text.endswith("\\$"))
    position = int(text.startswith("^"))
    while position < end:
        char = text[position]
        if char == "(" and not depth:
            depth, group_start, group_count = 1, len(atoms), group_count + 1
        elif char == ")" and depth and len(atoms) > group_start:
            depth = 0
        else:
            token = _TOKEN.match(text, position, end)
            if token is None or (char == "[" and not token["atom"].isascii()):
                raise ValueError(f"has {char!r} at character {position + 1}, which is not possible")
            if char == "[" and _SET_OPERATION.search(token["atom"], 1):
                escape = r"\[, \-, \&, \~ and \| for the characters themselves"
                raise ValueError(f"has {token['atom']}, which takes {escape}")
            try:
                regex = re.compile(token["atom"], re.ASCII)
            except re.error as error:
                raise ValueError(f"has {token['atom']}: {error.msg}") from None
            chars = frozenset(filter(regex.fullmatch, alphabet))
            atoms.append(_Atom(token["atom"], token["repeat"], chars))
            position = token.end() - 1
        position += 1
    if depth or not 1 <= group_count <= 2:  # noqa: PLR2004 (the step, and all steps)
        raise ValueError("needs one group for the step, and may have one for all steps")
    return atoms


def _longest_literal(atoms: List[_Atom]) -> str:
    texts = [""]
    for atom in atoms:
        is_plain = len(atom.text) == 1 and atom.text != "."
        if is_plain and atom.repeat in ("", "+"):
            texts[-1] += atom.text
        if not is_plain or atom.repeat:
            texts.append("")
    return max(texts, key=len)


def _overlapping(atom: _Atom, followers: List[_Atom]) -> str:
    """Return the text of an atom that may match what the repeated one before it does, or ""."""
    for follower in followers:
        if atom.chars & follower.chars:
            return follower.text
        if follower.repeat not in ("*", "?"):
            break
    return ""


def check_pattern(text: str) -> None:
    """Raise ValueError for what is neither a legal pattern nor ""."""
    if text:
        LinePattern(text)
