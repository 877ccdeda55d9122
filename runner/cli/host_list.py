"""Host list: the notation of `init --hosts`, parsed into entries of `cluster.nodes`."""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Collection

from runner.config.nodes import expand_range
from runner.core.errors import ConfigError, Problem
from runner.core.model.facts import MAX_PORT

NAME_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def parse_hosts(text: str) -> dict[str, dict[str, str | int]]:
    """Return the entries of `cluster.nodes` for hosts, or raise ConfigError.

    They are names, ranges, or user@address:port, with a name of your own as NAME=ADDRESS; commas
    separate several in one word.
    """
    nodes: dict[str, dict[str, str | int]] = {}
    used_names: set[str] = set()
    machines: set[tuple[str, str]] = set()
    # Commas and spaces separate hosts, except within brackets.
    for number, word in enumerate(filter(None, re.split(r"[,\s]+(?![^\[]*\])", text)), start=1):
        chosen_name, equals, machine = word.rpartition("=")
        if equals and not NAME_PATTERN.fullmatch(chosen_name):
            raise input_error("--hosts", f"{word!r}: {chosen_name!r} is no name for a node")
        user, address, port = _split_address(machine)
        if chosen_name and "[" in address and ":" not in address:
            raise input_error("--hosts", f"{word!r} gives one name to many machines")
        name = chosen_name or _node_name(address, number, used_names)
        members = _expand_members(word, name)
        entry_machines = {(member if name == address else address, port) for member in members}
        is_double = len(entry_machines) < len(members) or entry_machines & machines
        if is_double or used_names.intersection(members):
            raise input_error("--hosts", f"{word!r} names a machine a second time")
        used_names |= set(members)
        machines |= entry_machines
        host = address if name != address else ""
        settings: dict[str, str | int] = {"host": host, "user": user, "port": int(port or 0)}
        nodes[name] = {key: value for key, value in settings.items() if value}
    if not nodes:
        raise input_error("--hosts", f"{text!r} names no machine")
    return nodes


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
    if not re.fullmatch(r"[^\W-][\w.+\\-]*\$?", text):
        raise input_error(flag, f"{text!r} is no login name")


def input_error(flag: str, message: str) -> ConfigError:
    """Return the error of an illegal value."""
    return ConfigError([Problem(flag, message)])
