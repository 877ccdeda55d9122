"""Fixtures for tests on real hosts."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lab.lab import Lab, LabFactory, make_lab, missing, need
from tests.lab.launching import Launcher
from tests.lab.slurm import HpcLauncher, Slurm, slurm_lab
from tests.lab.sshds import MakePlace, Place
from tests.lab.supervising import RunStarter

if TYPE_CHECKING:
    from collections.abc import Iterator

OVER_BOTH = ("test_launch", "test_stop", "test_reconnect", "test_deploy", "test_runs")
"""The modules whose tests run over both transports, in `make test` those that are marked so."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs tests on the shared lab over transport openssh as well."""
    name = metafunc.module.__name__.rpartition(".")[2]
    if name in OVER_BOTH and "on_lab" in metafunc.fixturenames:
        is_chosen = metafunc.definition.get_closest_marker("over_openssh")
        marks = () if is_chosen else pytest.mark.all
        kinds = ["ssh", pytest.param("openssh", marks=marks)]
        metafunc.parametrize("transport", kinds, indirect=True)


@pytest.fixture(scope="session")
def lab_factory(tmp_path_factory: pytest.TempPathFactory) -> LabFactory:
    """Makes labs whose hosts see pytest's own temporary folder; skips where no lab can be made."""
    need(missing())
    folder = tmp_path_factory.getbasetemp()
    folder.chmod(0o755)  # pytest's own folders are closed to whom the hosts are logged in to as
    return partial(make_lab, keep=[folder])


@pytest.fixture(scope="session")
def lab(lab_factory: LabFactory) -> Iterator[Lab]:
    """Four plain hosts: each test finds them on, plugged in, idle, and as on the first day."""
    with lab_factory(n=4) as lab:
        yield lab


@pytest.fixture(autouse=True)
def lab_as_found(request: pytest.FixtureRequest) -> Iterator[None]:
    """Repairs the shared lab after each test, and fails those that left work or a crash there.

    A test that means to leave processes behind ends with `lab.kill_all()`.
    """
    lab: Lab | None = request.getfixturevalue("lab") if "lab" in request.fixturenames else None
    yield
    if lab is None:
        return
    lab.repair()
    left, crashes = lab.wait_idle(3), lab.crashes()
    if left or crashes:
        lab.kill_all()
    lab.reset_homes()
    if left or crashes:
        pytest.fail(f"left running: {left}; crashed: {crashes}")


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """Pytest's, readable on the hosts, too."""
    tmp_path.chmod(0o755)
    return tmp_path


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    """A folder that all hosts share, as they would a checkpoint's (see `programs/steps.py`)."""
    folder = tmp_path / "steps"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def launcher(tmp_path: Path) -> Iterator[Launcher]:
    """Starts `python -m runner` as a user with a folder and a conf/ of their own."""
    folder = tmp_path / "project"
    folder.mkdir()
    launcher = Launcher(folder)
    yield launcher
    launcher.close()


@pytest.fixture
def transport(request: pytest.FixtureRequest, lab: Lab) -> Iterator[str]:
    """How the clusters of a test reach their hosts."""
    lab.transport = getattr(request, "param", "ssh")
    yield lab.transport
    lab.transport = "ssh"


@pytest.fixture
def on_lab(lab: Lab, launcher: Launcher, transport: str) -> Launcher:
    """A user whose `cluster=lab` is two hosts, and `cluster=lab4` all four."""
    assert lab.transport == transport
    lab.write_cluster(launcher.conf, names=["node1", "node2"])
    lab.write_cluster(launcher.conf, name="lab4")
    return launcher


@pytest.fixture
def make_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakePlace]:
    """Makes a place with sshds on the loopback, and transports of a kind to them."""
    need("" if Path("/usr/sbin/sshd").exists() else "no sshd here")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    Path("/run/sshd").mkdir(exist_ok=True)
    with contextlib.ExitStack() as places:

        def make(kind: str) -> Place:
            place = Place(tmp_path, kind)
            places.callback(place.close)
            return place

        yield make


@pytest.fixture(params=["ssh", "openssh"])
def place(request: pytest.FixtureRequest, make_place: MakePlace) -> Place:
    """One for each transport over SSH."""
    return make_place(request.param)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[RunStarter]:
    """Starts runs of a supervisor on this machine."""
    starter = RunStarter(tmp_path)
    yield starter
    starter.close()


@pytest.fixture(scope="session")
def slurm_for_session(
    lab_factory: LabFactory, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Slurm]:
    """A login node and four compute nodes, with one home."""
    with slurm_lab(lab_factory, tmp_path_factory.mktemp("slurm")) as slurm:
        yield slurm


@pytest.fixture
def slurm(slurm_for_session: Slurm) -> Iterator[Slurm]:
    """The same, idle and whole at the begin and the end of a test."""
    slurm = slurm_for_session
    yield slurm
    slurm.clear()
    left = {n: [p.cmdline for p in h.processes("RUNNER_RUN_ID")] for n, h in slurm.nodes.items()}
    crashes = slurm.lab.crashes()
    slurm.lab.reset_homes()
    assert not any(left.values()), left
    assert not crashes, crashes


@pytest.fixture
def hpc(slurm: Slurm, tmp_path: Path) -> Iterator[HpcLauncher]:
    """A user on its login node."""
    folder = tmp_path / "project"
    folder.mkdir()
    launcher = HpcLauncher(folder, slurm)
    yield launcher
    launcher.close()
