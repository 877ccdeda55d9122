"""Keys of a container: what they cannot be is named with what they can."""

from __future__ import annotations

import pytest

from tests.unit.config.test_config import problems_of


@pytest.mark.parametrize(
    ("key", "value", "texts"),
    [
        ("engine", "dokcer", ("docker",)),
        ("image", None, ("container.image", "docker needs an image")),
        ("pull", "sometimes", ("container.pull", "choose missing, always or never")),
        ("shm_size", "lots", ("container.shm_size", "such as 16g")),
        ("ulimits", {"nofiles": 9}, ("container.ulimits.nofiles", "did you mean nofile?")),
        ("ulimits", {"nofile": "9:1"}, ("container.ulimits.nofile", "SOFT:HARD")),
        ("mounts", ["data:/data"], ("container.mounts", "absolute paths")),
        ("mounts", ["/a:/b:rx"], ("container.mounts", "such as /data:/data:ro")),
        ("mounts", ["/a:/b", "/c:/b/"], ("container.mounts", "two sources have that place")),
        ("mounts", ["/a:/"], ("container.mounts", "hide the image")),
        ("extra", ["-v", "data:/data"], ("--volume is not possible", "container.mounts")),
    ],
)
def test_what_a_key_cannot_be(key: str, value: object, texts: tuple[str, ...]) -> None:
    """With the key, and what is legal."""
    base = {"container.engine": "docker", "container.image": "bare"}
    said = "\n".join(problems_of({**base, f"container.{key}": value}))
    for text in texts:
        assert text in said


def test_keys_of_a_container_need_an_engine() -> None:
    """Each is named."""
    said = "\n".join(problems_of({"container.image": "bare", "container.shm_size": "1g"}))
    for key in ("container.image", "container.shm_size"):
        assert f"{key}: ranks run in no container without an engine" in said
    assert "choose one: container=docker" in said
