"""Reading values: each is checked where it is read, and all that is wrong is told at once."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Mapping, Sequence

from runner.core.errors import Problem
from runner.core.model.spec import PortRule
from runner.core.protocol import globs

OWNED = {
    "MASTER_ADDR": "the plan chooses it; cluster.nodes.NODE.addr says how others reach a node",
    "MASTER_PORT": "cluster.master_port chooses it",
    "WORLD_SIZE": "cluster.nproc_per_node and the nodes decide it",
    "LOCAL_WORLD_SIZE": "cluster.nproc_per_node decides it",
    **dict.fromkeys(
        ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK"), "what starts the ranks sets it"
    ),
    **dict.fromkeys(
        ("ROLE_RANK", "ROLE_WORLD_SIZE", "GROUP_WORLD_SIZE"), "what starts the ranks sets it"
    ),
    **dict.fromkeys(("PYTHON_EXEC", "RUNNER_RUN_ID"), "the runner needs it itself"),
}
"""Environment no user can set, and why."""


def nearest(word: str, legal: Iterable[str], before: str = "") -> str:
    """Return "did you mean …?", or "" when nothing is near."""
    found = difflib.get_close_matches(word, list(legal), n=1, cutoff=0.6)
    return f"did you mean {before}{found[0]}?" if found else ""


def either(words: Sequence[str]) -> str:
    """Return "a, b or c"."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def stranger(where: str, key: str, legal: Sequence[str]) -> Problem:
    """Return the problem of a key nobody reads."""
    full = f"{where}.{key}" if where else key
    hint = nearest(key, legal, f"{where}." if where else "")
    if "passw" in key and where.startswith("cluster"):
        hint = "hosts are logged in to with a key or an agent, without passwords: cluster.ssh.key"
    return Problem(full, f"there is no such key; legal here: {', '.join(legal)}", hint)


def scalar(value: object) -> str | None:
    """Return a YAML scalar as text (`true`, `0.1`), None for what is no scalar."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    return None


class Checker:
    """Reads values, and keeps what is wrong with them so that all of it is told at once.

    Every method takes the full key for its messages, and returns something harmless for a wrong
    value: it is never used.
    """

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems

    def wrong(self, where: str, what: str, hint: str = "") -> None:
        """Keep one problem."""
        self.problems.append(Problem(where, what, hint))

    def choice(self, where: str, value: object, legal: Sequence[str]) -> str:
        """Read one of a few words."""
        if isinstance(value, str) and value in legal:
            return value
        shown = scalar(value) or value
        hint = nearest(str(shown), legal)
        self.wrong(where, f"{shown!r} is not legal; choose {either(legal)}", hint)
        return legal[0]

    def seconds(self, where: str, value: object) -> float:
        """Read a time span."""
        if isinstance(value, (int, float)) and math.isfinite(value) and value > 0:
            return float(value)
        self.wrong(where, f"must be a positive number of seconds, not {value!r}")
        return 1.0

    def whole(self, where: str, value: object, least: int) -> int | None:
        """Read a whole number; null and `auto` are None."""
        if value in (None, "auto"):
            return None
        number = _whole(value)
        if number is None or number < least:
            self.wrong(where, f"must be a whole number from {least}, or auto, not {value!r}")
            return None
        return number

    def nnodes(self, where: str, value: object) -> tuple[int | None, int | None]:
        """Read how many nodes, or from how many to how many; the first is None for no range."""
        if not isinstance(value, str) or ":" not in value:
            return None, self.whole(where, value, least=1)
        least, most = (_whole(word.strip()) for word in value.split(":", 1))
        if not least or not most or least > most:
            what = f"must be a number of nodes, or a range such as 2:4, not {value!r}"
            self.wrong(where, what, "the fewest come first, from 1")
            return None, None
        return least, most

    def number(self, where: str, value: object, least: int) -> int:
        """Read a whole number."""
        number = _whole(value)
        if number is None or number < least:
            self.wrong(where, f"must be a whole number from {least}, not {value!r}")
            return least
        return number

    def port(self, where: str, value: object) -> int | None:
        """Read a TCP port, or null."""
        number = _whole(value)
        if value is not None and (number is None or not _is_port(number)):
            self.wrong(where, f"must be a port from 1 to 65535, not {value!r}")
        return number

    def ports(self, where: str, value: object) -> PortRule:
        """Read `auto`, 29500 or 29500-29600."""
        if value in (None, "auto"):
            return PortRule()
        first, dash, last = str(value).partition("-")
        low, high = _whole(first.strip()), _whole((last if dash else first).strip())
        if low is None or high is None or not (_is_port(low) and _is_port(high)) or low > high:
            what = (
                f"must be auto, a port such as 29500 or a range such as 29500-29600, not {value!r}"
            )
            self.wrong(where, what, "ports go from 1 to 65535, the first before the last")
            return PortRule()
        return PortRule(low, high)

    def line(self, where: str, value: object) -> str:
        """Read a text of one line."""
        return self.optional_line(where, value if value is not None else "") or ""

    def optional_line(self, where: str, value: object) -> str | None:
        """Read a text of one line, or null."""
        if value is None:
            return None
        text = scalar(value)
        if not text or re.search(r"[\n\r\0]", text):
            self.wrong(where, f"must be a text of one line, not {value!r}")
        return text

    def address(self, where: str, value: object) -> str | None:
        """Read a host name or address, or null."""
        text = self.optional_line(where, value)
        if not text:
            return text
        user, _, host = text.rpartition("@")
        port = re.fullmatch(r"([^:]+):(\d+)", host)
        if "://" in text or not re.fullmatch(r"[^\s-]\S*", text):
            self.wrong(where, f"{text if '@' not in text else host!r} is no host name or address")
        elif user or port:
            self._more_than_an_address(where, user, *(port.groups() if port else (host, "")))
        return host  # without a password, which no message shall repeat

    def _more_than_an_address(self, where: str, user: str, host: str, port: str) -> None:
        beside, _, key = where.rpartition(".")
        if ":" in user:
            what = "a password has no place here; hosts are logged in to with a key or an agent"
            self.wrong(where, what, f"{key}: {host}, and cluster.ssh.key names the key")
            return
        parts = {"user": user, "host": host, "port": port}
        what = " and ".join(f"a {name}" for name, text in parts.items() if text)
        hint = ", ".join(f"{beside}.{name}: {text}" for name, text in parts.items() if text)
        self.wrong(where, f"must be an address alone, not {what}", hint if key == "host" else "")

    def words(self, where: str, value: object) -> tuple[str, ...]:
        """Read a list of texts; a text alone is a list of one."""
        items = value if isinstance(value, list) else [] if value is None else [value]
        texts = [scalar(item) for item in items]
        if not all(texts) or any("\0" in str(text) for text in texts):
            self.wrong(where, f"must be a list of texts, not {value!r}")
        return tuple(filter(None, texts))

    def outputs(self, where: str, value: object) -> tuple[str, ...]:
        """Read paths, or patterns of them, below the working folder of the ranks."""
        if value == "" or (isinstance(value, list) and "" in value):
            self.wrong(where, "a path is empty", "such as results/*.pt; [] for none")
            return ()
        patterns = self.words(where, value)
        for pattern in patterns:
            if problem := globs.problem_of(pattern):
                hint = "it is relative to where the ranks run, such as results/*.pt"
                self.wrong(where, f"{pattern!r} {problem}", hint)
        return patterns

    def gpus(self, where: str, value: object) -> tuple[int | None, tuple[int, ...]]:
        """Read how many GPUs, or which ones."""
        if not isinstance(value, list):
            return self.whole(where, value, least=0), ()
        numbers = [_whole(item) for item in value]
        chosen = tuple(number for number in numbers if number is not None and number >= 0)
        if len(set(chosen)) < len(value):
            self.wrong(where, f"must name distinct devices such as [0, 2], not {value!r}")
        return len(chosen), chosen

    def ranks(self, where: str, value: object) -> frozenset[int] | None:
        """Read `all`, or the ranks to show."""
        if value == "all":
            return None
        numbers = [_whole(item) for item in (value if isinstance(value, list) else [value])]
        if any(number is None or number < 0 for number in numbers):
            self.wrong(where, f"must be all, or a list of ranks such as [0, 3], not {value!r}")
        return frozenset(number for number in numbers if number is not None)

    def run_id(self, where: str, value: object) -> str:
        """Read what becomes a folder, a label and a rendezvous id."""
        text = scalar(value) or ""
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,62}", text):
            what = f"{text!r} is not legal; use up to 63 of a-z, 0-9 and '-', no '-' in front"
            self.wrong(where, what, "leave it out to get one made")
        return text

    def env_name(self, where: str, name: str) -> None:
        """Check the name of an environment variable."""
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            self.wrong(where, f"{name!r} is no name for an environment variable")
        elif name in OWNED or name.startswith("PET_"):
            reason = OWNED.get(name, "PET_ variables steer torchrun, and the plan does that")
            self.wrong(where, f"{name} cannot be set: {reason}")

    def env(self, where: str, value: object) -> dict[str, str]:
        """Read an environment; YAML's true is "true", a null is as good as no entry."""
        if not isinstance(value, Mapping):
            if value is not None:
                self.wrong(where, f"must be a mapping of names to values, not {value!r}")
            return {}
        env = {}
        for name, item in value.items():
            self.env_name(f"{where}.{name}", name)
            text = scalar(item)
            unclear = isinstance(item, float) and not math.isfinite(item)
            if text is not None and "\0" not in text and not unclear:
                env[name] = text
            elif item is not None:
                self.wrong(f"{where}.{name}", f"must be a text, a number or a bool, not {item!r}")
        return env


def _whole(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value) else None


def _is_port(number: int) -> bool:
    return 1 <= number <= 65535  # noqa: PLR2004 (what TCP has)
