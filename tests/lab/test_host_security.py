"""Other users of a host: what they put where we work neither runs nor blocks anything."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.lab.lab import Lab
    from tests.lab.launching import Launcher

STRANGER = "nobody"


@pytest.mark.promise(3)
def test_a_launch_needs_nothing_of_tmp(lab: Lab, on_lab: Launcher) -> None:
    """Not read-only and noexec on one host, not with a stranger's folders on the other."""
    squatted = " ".join(f"/tmp/runner-2001{ending}" for ending in ("", "-a", "-b", "-c"))
    mount = "mount -o remount,bind,{} /tmp"
    with (
        lab["node1"].changed(mount.format("ro,noexec"), mount.format("rw,exec")),
        lab["node2"].changed(f"mkdir {squatted}", f"rmdir {squatted}"),
    ):
        launch = ("cluster=lab", *on_lab.rank_overrides("print=up"))
        checked = on_lab("check", *launch)
        assert checked.code == 0, checked
        done = on_lab(*launch)
    assert done.code == 0, done
    assert done.out.count("] up") == 2


@pytest.mark.promise(12)
def test_a_folder_that_a_stranger_made_runs_nothing(lab: Lab, on_lab: Launcher) -> None:
    """Not even with our tasks in it, since he could change them: refused before anything runs."""
    plant = "mkdir -m 777 /tmp/x && mkdir -m 777 /tmp/x/tasks"
    with lab["node2"].changed(f"setpriv --reuid={STRANGER} sh -c '{plant}'", "rm -rf /tmp/x"):
        words = ("cluster.workdir=/tmp/x", *on_lab.rank_overrides("print=up"))
        done = on_lab("cluster=lab", *words)
        checked = on_lab("check", "cluster=lab", *words)
    for refused in (done, checked):
        assert refused.code == 3, refused
    assert f"node2: cluster.workdir: /tmp/x belongs to the user {STRANGER}\n" in done.err
    assert "cluster.workdir=/tmp/x-${oc.env:USER}" in done.err
    assert f"/tmp/x belongs to the user {STRANGER}" in checked.out
    assert lab["node1"].sh("ls /tmp/x", check=False) == ""


@pytest.mark.promise(7)
def test_a_store_that_unpickles_is_said_where_others_could_reach_it(
    lab: Lab, on_lab: Launcher
) -> None:
    """By `check` and by the launch, with the other user and the way that has no such store."""
    stranger = lab["node2"].popen(["setpriv", "--reuid=4711", "sleep", "900"], user="root")
    try:
        checked = on_lab("check", "cluster=lab", "rendezvous=c10d")
        dry = on_lab("cluster=lab", "task=env", "rendezvous=c10d", "dry_run=true")
    finally:
        stranger.kill()
        stranger.wait()
    for printed in (checked.out, dry.out + dry.err):
        said = " ".join(printed.split())
        reaches = "whoever reaches the store that the nodes meet at can run code"
        assert f"others have processes here (4711), and {reaches}" in said
        assert "rendezvous=static" in said
