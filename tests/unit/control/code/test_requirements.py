"""Requirements of a project, from files of every kind.

uv.lock, pylock.toml and the compiled requirements are what uv 0.13 wrote for one small project.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from runner.control.code.requirements import parse_requirement, read_requirements
from runner.core.model.release import Certainty, PackageRequirement, Requirements

LOCKS = Path(__file__).parents[3] / "fixtures" / "locks"


def short(wants: Requirements) -> dict[str, tuple[str, str, tuple[str, ...]]]:
    """What is wanted, by name."""
    return {each.name: (each.specifier, each.marker, each.locked) for each in wants.packages}


def test_uv_lock_gives_versions_to_what_pyproject_names() -> None:
    """Optional ones and groups are left out, and so is what only others need."""
    wants = read_requirements(LOCKS / "uv")
    assert wants.source == "uv.lock"
    assert {each.certainty for each in wants.packages} == {Certainty.RUNTIME}
    found = short(wants)
    assert list(found) == ["einops", "numpy", "pyyaml", "tqdm", "pywin32"]
    assert found["einops"][0] == ">=0.7"
    assert len(found["numpy"][2]) > 1, "a lock may have several, for several Pythons"
    assert found["tqdm"][0] == "<5,>=4.60"
    assert found["pywin32"][1] == 'sys_platform == "win32"'


def test_locks_without_a_pyproject_name_what_they_hold(tmp_path: Path) -> None:
    """With their markers; uv.lock says which packages only development groups need."""
    found = short(read_requirements(LOCKS / "pylock"))
    assert found["colorama"][1] == "sys_platform == 'win32'"
    assert {"einops", "numpy", "pyyaml", "tqdm"} <= found.keys()
    shutil.copy(LOCKS / "uv" / "uv.lock", tmp_path)
    assert list(short(read_requirements(tmp_path))) == [
        "einops",
        "numpy",
        "pywin32",
        "pyyaml",
        "tqdm",
    ]


def test_compiled_requirements_are_a_lock() -> None:
    """Their pins are one answer of many, and hold what others need."""
    wants = read_requirements(LOCKS / "compiled")
    (einops,) = (each for each in wants.packages if each.name == "einops")
    assert einops == PackageRequirement("einops", "", "", ("0.8.2",), Certainty.INDIRECT)
    (colorama,) = (each for each in wants.packages if each.name == "colorama")
    assert colorama.marker == 'sys_platform == "win32"'


def test_requirements_as_people_write_them(tmp_path: Path) -> None:
    """With includes, options, addresses, comments and line ends in the middle."""
    (tmp_path / "more").mkdir()
    (tmp_path / "requirements.txt").write_text(
        "# what we need\n"
        "-r more/base.txt\n"
        "--extra-index-url https://download.pytorch.org/whl/cu128\n"
        "torch==2.5.1\nnvidia-nccl-cu12\n"
        "NumPy >= 1.26 , < 3  # not 3\n"
        "ruamel.yaml[jinja2]==0.18.6 \\\n    --hash=sha256:00\n"
        "git+https://example.org/some/code.git\n./wheels/own.whl\n-e .\n"
        "timm @ https://example.org/timm-1.0-py3-none-any.whl\n"
        "pywin32; sys_platform == 'win32'\n"
        "not a requirement at all\n"
    )
    (tmp_path / "more" / "base.txt").write_text("-r ../requirements.txt\neinops\n")
    wants = read_requirements(tmp_path)
    assert wants.source == "requirements.txt"
    assert {each.certainty for each in wants.packages} == {Certainty.LISTED}
    assert short(wants) == {
        "einops": ("", "", ()),
        "numpy": ("<3,>=1.26", "", ()),
        "ruamel-yaml": ("==0.18.6", "", ()),
        "timm": ("", "", ()),
        "pywin32": ("", 'sys_platform == "win32"', ()),
    }


def test_the_first_file_counts_in_this_folder_or_above_in_the_work_tree(tmp_path: Path) -> None:
    """A lock before requirements, those before pyproject.toml; nothing above the work tree."""
    deep = tmp_path / "project" / "src" / "deep"
    deep.mkdir(parents=True)
    (tmp_path / "requirements.txt").write_text("outside\n")
    assert read_requirements(deep) == Requirements()
    (tmp_path / "project" / ".git").mkdir()
    assert read_requirements(deep) == Requirements()
    top = tmp_path / "project"
    (top / "pyproject.toml").write_text('[project]\nname = "own"\ndependencies = ["einops"]\n')
    assert read_requirements(deep).source == "pyproject.toml"
    (top / "requirements.txt").write_text("einops\n")
    assert read_requirements(deep).source == "requirements.txt"
    shutil.copy(LOCKS / "uv" / "uv.lock", top)
    assert read_requirements(deep).source == "uv.lock"


@pytest.mark.parametrize("name", ["uv.lock", "pyproject.toml", "requirements.txt"])
def test_what_cannot_be_read_names_nothing(tmp_path: Path, name: str) -> None:
    """No launch fails for it."""
    (tmp_path / name).write_bytes(b"\xff[[[")
    assert read_requirements(tmp_path).packages == ()


def test_one_requirement() -> None:
    """Extras are the package's own business."""
    assert parse_requirement("Foo_Bar[a,b]~=1.2") == PackageRequirement("foo-bar", "~=1.2")
    assert parse_requirement("./folder") is None
