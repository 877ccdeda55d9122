"""Targets of notifications: which are legal, and that their secrets are not shown."""

from __future__ import annotations

import pytest

from runner.core.notification.target import expand, hide, is_url, references, shown, target_problem


@pytest.mark.parametrize(
    "target",
    [
        "mail -s done ada",
        "curl http://elsewhere/x",  # the user's own command
        "https://ntfy.sh/runs",
        "https://hooks.example.org:8443/services/$HOOK?x=${OTHER}",
        "http://localhost:8080/x",
        "http://127.0.0.1/x",
        "http://[::1]:80/x",
    ],
)
def test_a_legal_target(target: str) -> None:
    """A command is any line; what is a URL is encrypted, or stays on the machine."""
    assert target_problem(target) == ""


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        (" ", "empty"),
        ("a\nb", "more than one line"),
        ("x" * 5000, "more than 4096"),
        ("http://example.org/x", "http://"),
        ("http://10.0.0.1/x", "http://"),
        ("file:///etc/passwd", "file://"),
        ("https://ada:pw@example.org/", "user or a password"),
        ("https:///x", "no host"),
        ("https://host/a b", "blanks"),
        ("https://host:port/", "cannot be read"),
        ("https://[::1/", "cannot be read"),
    ],
)
def test_an_illegal_target(target: str, problem: str) -> None:
    """The reason is given, without what may be a password."""
    assert problem in target_problem(target)
    assert "pw" not in target_problem(target)


def test_variables_of_a_url() -> None:
    """They are put in at last, checked again, and never shown."""
    url = "https://h.example/a/$HOOK/${X_1}"
    assert is_url(url)
    assert references(url) == ("HOOK", "X_1")
    assert references("echo $HOME") == ()
    assert expand(url, {"HOOK": "s", "X_1": "t"}) == "https://h.example/a/s/t"
    assert shown(url) == "https://h.example/…"
    assert shown("https://h.example/") == "https://h.example"
    assert shown("a" * 80) == "a" * 59 + "…"
    with pytest.raises(ValueError, match=r"^\$X_1 is not set there$"):
        expand(url, {"HOOK": "s"})
    with pytest.raises(ValueError, match="more than one line"):
        expand(url, {"HOOK": "s\n", "X_1": "t"})
    with pytest.raises(ValueError, match="user or a password"):
        expand("https://$A/", {"A": "ada:pw@h"})


def test_secrets_are_hidden() -> None:
    """Also a line of one that has several, and the longer of two that overlap."""
    secrets = ["-----\nline of a key\n", "abcd", "abcdef", "1"]
    assert hide("a line of a key, abcdef, abcd and 1", secrets) == "a ***, ***, *** and 1"
