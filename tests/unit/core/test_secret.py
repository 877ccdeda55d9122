"""Secrets stay out of everything that is text."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from runner.core.spec import Node, Secret, Spec
from runner.core.wire.codec import encode

pytestmark = [pytest.mark.promise(7)]

SECRET = Secret("hunter2")
SPEC = Spec(run_id="r", nodes=(Node("a", "a"),), secrets={"KEY": SECRET})


@pytest.mark.parametrize(
    "show",
    [repr, str, "{}".format, "{!r}".format, "%s".__mod__, ascii, lambda secret: f"{secret:}"],
    ids=["repr", "str", "format", "format repr", "percent", "ascii", "f-string"],
)
def test_secret_prints_as_stars(show: Callable[[Secret], str]) -> None:
    """However it becomes text, a secret is `***`."""
    assert show(SECRET) == "***"


def test_secret_cannot_be_written_as_json() -> None:
    """What would record a secret fails instead."""
    with pytest.raises(TypeError, match="Secret is not JSON serializable"):
        json.dumps(encode(SPEC))
