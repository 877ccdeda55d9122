"""Notification target: a shell command, or an https URL in which `$NAME` stands for a secret."""

from __future__ import annotations

import ipaddress
import re
from typing import Iterable, Mapping, Tuple
from urllib.parse import urlsplit

from runner.core.text import printable

MAX_TARGETS = 8
MAX_CHARS = 4096
MAX_SHOWN_CHARS = 60
MIN_HIDDEN_CHARS = 4
"""Shorter values of secrets are not looked for: `1` would be found everywhere."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_REFERENCE = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))", re.ASCII)


def is_url(target: str) -> bool:
    """Return whether a target is a URL: any other text is a command."""
    return bool(_SCHEME.match(target))


def target_problem(target: str) -> str:
    """Return why a text cannot be a target, "" if it can."""
    if not target.strip():
        return "a target is empty"
    if len(target) > MAX_CHARS:
        return f"a target has more than {MAX_CHARS} characters"
    if any(char in target for char in "\n\r\0"):
        return "a target has more than one line"
    return _url_problem(target) if is_url(target) else ""


def _url_problem(url: str) -> str:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError as error:
        return f"the URL cannot be read: {error}"
    if parts.scheme not in ("https", "http"):
        return f"the URL begins with {parts.scheme}://, not https://"
    if "@" in parts.netloc:
        return "the URL has a user or a password, which would be on record"
    if not host or not url.isprintable() or " " in url:
        return "the URL names no host, or has blanks"
    if parts.scheme == "http" and not _is_loopback(host):
        return "the URL begins with http://, which anyone on the way can read"
    return ""


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def stays_on_machine(url: str) -> bool:
    """Return whether a URL is one of this machine, which no proxy is to be asked for."""
    return _is_loopback(urlsplit(url).hostname or "")


def references(target: str) -> Tuple[str, ...]:
    """Return the variables that stand for parts of a URL; a shell replaces those of a command."""
    if not is_url(target):
        return ()
    return tuple(braced or bare for braced, bare in _REFERENCE.findall(target))


def expand(url: str, environ: Mapping[str, str]) -> str:
    """Return the URL with the values of its variables: only for the moment in which it is used.

    Raises:
        ValueError: One is not set, or what comes of it is no legal URL.
    """
    for name in references(url):
        if name not in environ:
            raise ValueError(f"${name} is not set there")
    expanded = _REFERENCE.sub(lambda found: environ[found[1] or found[2]], url)
    if problem := target_problem(expanded):
        raise ValueError(f"with the values of its variables, {problem}")
    return expanded


def shown(target: str) -> str:
    """Return a target as messages name it: of a URL no more than the host."""
    if is_url(target):
        parts = urlsplit(target)
        rest = "/…" if parts.path.strip("/") or parts.query else ""
        return printable(f"{parts.scheme}://{parts.netloc}{rest}")
    text = printable(target)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[: MAX_SHOWN_CHARS - 1]}…"


def hide(text: str, secrets: Iterable[str]) -> str:
    """Return text in which `***` stands for secrets, and for each line of one that has several."""
    parts = {part for value in secrets for part in (value, *value.splitlines())}
    for part in sorted(parts, key=len, reverse=True):
        if len(part) >= MIN_HIDDEN_CHARS:
            text = text.replace(part, "***")
    return text
