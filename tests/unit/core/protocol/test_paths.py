"""Paths of a run on a host."""

from __future__ import annotations

from runner.core.protocol.paths import PROGRAM_LOG, RunPaths, rank_source, tasks_folder


def test_run_folder_is_as_documented() -> None:
    """Run and node name the folder: several hosts may share one home."""
    folder = RunPaths("/home/ada/.runner", "0102-0304-x-abcd", "gpu1")
    root = "/home/ada/.runner/runs/0102-0304-x-abcd/gpu1"

    assert vars(folder) == {
        "root": root,
        "format": f"{root}/format",
        "order": f"{root}/order.json",
        "info": f"{root}/run.json",
        "plan": f"{root}/plan.json",
        "config": f"{root}/config.yaml",
        "state": f"{root}/state.json",
        "owner_file": f"{root}/owner.json",
        "events": f"{root}/events.jsonl",
        "supervisor_log": f"{root}/supervisor.log",
        "stop_marker": f"{root}/stop_requested",
        "relaunch_marker": f"{root}/relaunch_pending",
        "ballast": f"{root}/ballast",
        "last_ballast": f"{root}/ballast.last",
        "work": f"{root}/work",
        "checked_out": f"{root}/checked_out",
        "unattended": f"{root}/unattended",
        "shim": f"{root}/rank.py",
        "spawner": f"{root}/spawner.py",
        "container_client": f"{root}/container_client.py",
        "container_entry": f"{root}/container_entry.py",
        "home": f"{root}/home",
        "site": f"{root}/site",
        "preload": f"{root}/preload.py",
        "preload_package": f"{root}/runner_preload",
        "container_dump": f"{root}/container_dump.py",
    }
    assert folder.stream_log(1, rank_source(3), "err") == f"{root}/attempt_1/rank_3.err"
    assert folder.stream_log(0, PROGRAM_LOG, "out") == f"{root}/attempt_0/program.out"


def test_shipped_tasks_lie_by_content() -> None:
    """Another content is another folder: what runs is never written over."""
    assert tasks_folder("/w", "abc") == "/w/tasks/abc"
