"""The wheel, installed apart from this repository, in a project of somebody else.

The environment has what the wheel depends on from the tests' own, by a `.pth` file: torch alone
would take minutes to install.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.golden.here import write
from tests.lab.lab import Lab
from tests.lab.launching import ROOT, Controller, Result
from tests.lab.waiting import PATIENCE

pytestmark = [pytest.mark.promise(3)]

NODES = ["node1", "node2"]
PROJECT = {
    "conf/model/small.yaml": "width: 8\n",
    "train.py": """\
import importlib.util
import json
import os
import sys

with open("conf/model/small.yaml") as file:
    print(json.dumps([os.environ["RANK"], os.environ["WORLD_SIZE"], sys.argv[1:], file.read(),
                      os.getcwd(), importlib.util.find_spec("runner") is None]))
""",
}


def run(*argv: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    words = list(map(str, argv))
    done = subprocess.run(
        words, cwd=cwd, env=env, capture_output=True, text=True, timeout=120 * PATIENCE, check=False
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    return done.stdout


@dataclass(frozen=True)
class Installed:
    site: Path
    env: dict[str, str]
    folder: Path

    def __call__(self, program: str, *words: str, seconds: float = 60) -> Result:
        argv = [str(Path(self.env["VIRTUAL_ENV"], "bin", program)), *words]
        with closing(Controller(argv, self.folder, self.env)) as controller:
            return controller.wait(seconds)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the sdist, and of the wheel that somebody else makes from that."""
    folder = tmp_path_factory.mktemp("built")
    build = (sys.executable, "-m", "hatchling", "build", "-d", folder, "-t")
    run(*build, "sdist", cwd=ROOT)
    run("tar", "-xzf", *folder.glob("*.tar.gz"), cwd=folder)
    (source,) = (path for path in folder.glob("runner-*") if path.is_dir())
    run(*build, "wheel", cwd=source)
    return folder


@pytest.fixture(scope="session")
def environment(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("environment") / "venv"
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    # The tests' own pip and nothing else of theirs: it would find their editable runner.
    pip = tmp_path_factory.mktemp("pip")
    (pip / "pip").symlink_to(Path(sysconfig.get_path("purelib")) / "pip")
    flags = ["--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check", "--quiet"]
    words: list[str | Path] = ["-m", "pip", "install", *flags, *built.glob("*.whl")]
    run(python, *words, cwd=folder, env={"PYTHONPATH": str(pip), "HOME": str(pip)})
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


@pytest.fixture
def on_lab(environment: Path, lab: Lab, tmp_path: Path) -> Installed:
    """Somebody whose project has a `conf` of its own; its two hosts never saw us."""
    folder = tmp_path / "their project"
    write(folder, PROJECT)
    home = tmp_path / "home"
    home.mkdir()
    (site,) = environment.glob("lib/python*/site-packages")
    path = f"{environment}/bin:/usr/local/bin:/usr/bin:/bin"
    env = {"HOME": str(home), "PATH": path, "LANG": "C.UTF-8", "VIRTUAL_ENV": str(environment)}
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "first")):
        run(*git, *words, cwd=folder, env=env)
    lab.write_cluster(folder / "conf", "mine", NODES)
    return Installed(site, env, folder)


def test_the_wheel_and_the_sdist_hold_all_of_it(built: Path) -> None:
    """Every file of ours and no other, YAML and examples in it.

    Somebody who packages the sdist can run `make test` there.
    """
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        files = archive.namelist()
    ours = {
        "runner": ROOT / "runner",
        "runner/conf": ROOT / "conf",
        "runner/examples": ROOT / "examples",
    }
    wanted = {
        f"{name}/{path.relative_to(folder).as_posix()}"
        for name, folder in ours.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"runner/conf/runner.yaml", "runner/conf/cluster/local.yaml", "runner/py.typed"} < wanted
    assert {name for name in files if ".dist-info/" not in name} == wanted
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {"pyproject.toml", "Makefile", "constraints.txt", ".ci/system", "fabfile.py"} <= names
    assert {"tests/conftest.py", "tests/lab/test_installed.py", "conf/runner.yaml"} <= names
    assert not [name for name in names if name.endswith(".pyc") or name.startswith("runs")]


@pytest.mark.promise(14)
def test_a_run_on_hosts_is_that_of_the_wheel(lab: Lab, on_lab: Installed) -> None:
    """Nothing of the repository is imported; the code is pushed."""
    probe = (
        "import json, sys, runner, importlib.util;"
        "from runner.config.source import shipped_folder;"
        "print(json.dumps([runner.__file__, str(shipped_folder()), sys.path,"
        " importlib.util.find_spec('tests') is None]))"
    )
    file, conf, path, no_tests = json.loads(on_lab("python", "-c", probe).out)
    assert file == f"{on_lab.site}/runner/__init__.py"
    assert conf == f"{on_lab.site}/runner/conf"
    assert not [each for each in path if each and Path(each).resolve() == ROOT]
    assert no_tests
    words = ("cluster=mine", "task.script=train.py", "task.args.lr=0.2")
    offline = on_lab("runner", *words, "dry_run=offline", "cluster.nodes.node1.port=23")
    assert [offline.out.count(f" --node_rank={rank} ") for rank in range(3)] == [1, 1, 0]
    assert not (on_lab.folder / "runs").exists()
    done = on_lab("python", "-m", "runner", *words, "task.entry=plain")
    assert done.code == 0, done
    lines = [re.fullmatch(r"\[(\w+):(\d+)\] (.+)", line) for line in done.out.splitlines()]
    said = {(found[1], found[2]): json.loads(found[3]) for found in lines if found}
    assert said.keys() == {("node1", "0"), ("node2", "1")}
    for (node, rank), (own, world, args, width, folder, _) in said.items():
        assert (own, world, args) == (rank, "2", ["--lr", "0.2"])
        assert width == PROJECT["conf/model/small.yaml"]
        assert str(folder).endswith(f"/.runner/runs/{done.folder.name}/{node}/work")
        assert lab[node].sh("ls ~/.runner/releases").count("\n") == 1
