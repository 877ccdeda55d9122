"""Host list: `init --hosts` and `init --hostfile`, parsed into entries of `cluster.nodes`."""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Collection
from pathlib import Path

from runner.config.nodes import expand_range
from runner.config.words import names_file
from runner.core.errors import ConfigError, Problem
from runner.core.model.facts import MAX_PORT
from runner.core.shell import expand_home

Nodes = dict[str, dict[str, str | int]]
"""Entries of `cluster.nodes` by name, with the keys that differ from the defaults."""

SSH_PORT = 22
FIRST_USER_PORT = 1024  # no machine has so many slots
NAME_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def parse_hosts(text: str) -> Nodes:
    """Return the entries of `cluster.nodes` for hosts, or raise ConfigError.

    They are names, ranges, or user@address:port, with a name of your own as NAME=ADDRESS; commas
    separate several in one word.
    """
    found = _NodeList()
    # Commas and spaces separate hosts, except within brackets.
    for word in filter(None, re.split(r"[,\s]+(?![^\[]*\])", text)):
        if names_file(word):
            message = f"{word!r} is a file here: --hostfile {word} reads one"
            raise input_error("--hosts", f"{message}; NAME={word} is a machine of that name")
        found.add(word)
    if not found.nodes:
        raise input_error("--hosts", f"{text!r} names no machine")
    return found.nodes


def read_hostfile(file: str) -> Nodes:
    """Return the entries of `cluster.nodes` for a hostfile, or raise ConfigError.

    As in those of DeepSpeed and MPI, a line is a machine, perhaps with slots=4, its ranks, and
    other KEY=VALUE, which are not used. `gpu1:4` without slots is MPICH's form of slots=4.
    """
    try:
        text = Path(expand_home(file)).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise input_error("--hostfile", f"{file} cannot be read: {reason}") from error
    found = _NodeList()
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        try:
            machine, slots = _read_slots(*words)
            found.add(machine, slots)
        except ConfigError as error:
            message = f"{file}, line {number}: {error.problems[0].message}"
            raise input_error("--hostfile", message) from None
    if not found.nodes:
        raise input_error("--hostfile", f"{file} names no machine")
    return found.nodes


def _read_slots(machine: str, *words: str) -> tuple[str, int]:
    """Return the machine and the slots of a line of a hostfile, 0 if it names none."""
    values: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise input_error("--hostfile", f"{word!r} is not like slots=4")
        values[key] = value
    slots = values.get("slots")
    after_colon = re.fullmatch(r"([^@:]+):(\d+)", machine)
    if slots is None and after_colon:
        machine, slots = after_colon.groups()
        if int(slots) == SSH_PORT or int(slots) >= FIRST_USER_PORT:
            message = f"is {slots} a port, or a number of slots? Write slots=N after it"
            raise input_error("--hostfile", message)
    if slots is None:
        return machine, 0
    if not re.fullmatch(r"[1-9][0-9]{0,3}", slots):
        raise input_error("--hostfile", f"slots={slots} is no number of ranks")
    return machine, int(slots)


class _NodeList:
    """Entries of `cluster.nodes`, and what they have named so far."""

    def __init__(self) -> None:
        self.nodes: Nodes = {}
        self._used_names: set[str] = set()
        self._machines: set[tuple[str, str]] = set()
        self._count = 0

    def add(self, word: str, slots: int = 0) -> None:
        """Add one machine, or those of a range; raise ConfigError for what is none or known."""
        self._count += 1
        chosen_name, equals, machine = word.rpartition("=")
        if equals and not NAME_PATTERN.fullmatch(chosen_name):
            raise input_error("--hosts", f"{word!r}: {chosen_name!r} is no name for a node")
        user, address, port = _split_address(machine)
        if chosen_name and "[" in address and ":" not in address:
            raise input_error("--hosts", f"{word!r} gives one name to many machines")
        name = chosen_name or _node_name(address, self._count, self._used_names)
        members = _expand_members(word, name)
        entry_machines = {(member if name == address else address, port) for member in members}
        is_double = len(entry_machines) < len(members) or entry_machines & self._machines
        if is_double or self._used_names.intersection(members):
            raise input_error("--hosts", f"{word!r} names a machine a second time")
        self._used_names |= set(members)
        self._machines |= entry_machines
        settings: dict[str, str | int] = {
            "host": address if name != address else "",
            "user": user,
            "port": int(port or 0),
            "nproc_per_node": slots,
        }
        self.nodes[name] = {key: value for key, value in settings.items() if value}


def _split_address(word: str) -> tuple[str, str, str]:
    """Split user@address:port, where the address may be one of IPv6."""
    user, _, rest = word.rpartition("@")
    if match := re.fullmatch(r"\[([^\[\]]*:[^\[\]]*)\](?::(.+))?", rest):
        address, port = match[1], match[2] or ""
    elif rest.count(":") > 1:
        address, port = rest, ""
    else:
        address, colon, port = rest.partition(":")
        if colon and not port:
            raise input_error("--hosts", f"{word!r} names no port after the colon")
    if user or word.startswith("@"):
        check_user(user, "--hosts")
    if port and not (port.isascii() and port.isdecimal() and 1 <= int(port) <= MAX_PORT):
        raise input_error("--hosts", f"{word!r}: {port!r} is no port from 1 to {MAX_PORT}")
    if re.fullmatch(r"[\d.]+", address) or ":" in address:
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise input_error("--hosts", f"{word!r}: {address!r} is no address") from None
    elif "[" not in address and not NAME_PATTERN.fullmatch(address):
        raise input_error("--hosts", f"{word!r}: {address!r} is no name or address of a machine")
    return user, address, port


def _node_name(address: str, number: int, used_names: Collection[str]) -> str:
    """Return a node name without dots, so that overrides can name it."""
    if "[" in address:
        return address
    numeric = re.fullmatch(r"[\d.]+|.*:.*", address)
    candidates = [] if numeric else [address.partition(".")[0], address]
    generated = (f"node{n}" for n in itertools.chain([number], itertools.count(1)))
    return next(name for name in itertools.chain(candidates, generated) if name not in used_names)


def _expand_members(word: str, name: str) -> list[str]:
    """Return the names of the nodes of an entry."""
    try:
        names = expand_range(name)
    except ValueError as error:
        raise input_error("--hosts", f"{word!r} is no range of names: {error}") from error
    if bad := [member for member in names if not NAME_PATTERN.fullmatch(member)]:
        raise input_error("--hosts", f"{word!r}: {bad[0]!r} is no name or address of a machine")
    return names


def check_user(text: str, flag: str = "--user") -> None:
    """Raise ConfigError unless it is a login name."""
    if not re.fullmatch(r"[^\W-]([\w.+\\@-]*[\w.+\\-])?\$?", text):
        raise input_error(flag, f"{text!r} is no login name")


def input_error(flag: str, message: str) -> ConfigError:
    """Return the error of an illegal value."""
    return ConfigError([Problem(flag, message)])
