"""logind's settings, read from trees of files like a host's."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.host.facts import logind

SESSION = "0::/user.slice/user-1000.slice/session-3.scope\n"
MAIN = "etc/systemd/logind.conf"
YES = "[Login]\nKillUserProcesses=yes\n"


def host(root: Path, files: dict[str, str], own: str = SESSION) -> str:
    """A host with these files, and us in the cgroup `own`."""
    for name, text in {"proc/self/cgroup": own, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        pytest.param(SESSION, True, id="session"),
        pytest.param("1:name=systemd:/user.slice/session-c2.scope\n0::/\n", True, id="version 1"),
        pytest.param("0::/user.slice/user@1000.service/app.slice\n", False, id="user service"),
        pytest.param("0::/system.slice/slurmd.service\n", False, id="service"),
        pytest.param("0::/\n", False, id="container"),
        pytest.param("", False, id="no cgroups"),
    ],
)
def test_only_sessions_end_at_logout(tmp_path: Path, own: str, *, expected: bool) -> None:
    """Services and containers live on."""
    root = host(tmp_path, {MAIN: YES}, own)

    assert logind.kill_setting("ann", root) == (
        f"KillUserProcesses=yes in /{MAIN}" if expected else ""
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("[Login]\n#KillUserProcesses=yes\n", ""),
        ("[Login]\n; KillUserProcesses=yes\n", ""),
        ("[Other]\nKillUserProcesses=yes\n", ""),
        ("[Login]\n KillUserProcesses = True \n", "KillUserProcesses=True"),
        ("[Login]\nKillUserProcesses=yes\nKillUserProcesses=0\n", ""),
        ("[Login]\nKillUserProcesses=yes\nKillExcludeUsers=bob ann\n", ""),
        ("[Login]\nKillUserProcesses=yes\nKillExcludeUsers=bob\n", "KillUserProcesses=yes"),
        ("[Login]\nKillUserProcesses=1\nKillExcludeUsers=ann\nKillExcludeUsers=bob\n", ""),
        (
            "[Login]\nKillUserProcesses=1\nKillExcludeUsers=ann\nKillExcludeUsers=\n",
            "KillUserProcesses=1",
        ),
        ("[Login]\nKillUserProcesses=yes\nKillOnlyUsers=bob\n", ""),
        ("[Login]\nKillOnlyUsers=bob ann\n", "KillOnlyUsers=ann"),
    ],
)
def test_settings_count_as_logind_counts_them(tmp_path: Path, text: str, expected: str) -> None:
    """Exclusions first, then the list of victims, then the switch."""
    assert logind.kill_setting("ann", host(tmp_path, {MAIN: text})) == (
        f"{expected} in /{MAIN}" if expected else ""
    )


def test_root_is_spared_unless_others_are_named(tmp_path: Path) -> None:
    """That is the default of the list of exclusions."""
    assert logind.kill_setting("root", host(tmp_path / "a", {MAIN: YES})) == ""
    text = f"{YES}KillExcludeUsers=ann\n"
    assert logind.kill_setting("root", host(tmp_path / "b", {MAIN: text})) != ""


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param({f"usr/lib/systemd/logind.conf.d/{n}.conf": YES for n in "ab"}, "b", id="lib"),
        pytest.param(
            {
                "etc/systemd/logind.conf.d/a.conf": YES,
                "usr/lib/systemd/logind.conf.d/b.conf": "[Login]\nKillUserProcesses=no\n",
            },
            "",
            id="the name decides, not the folder",
        ),
        pytest.param(
            {
                "run/systemd/logind.conf.d/a.conf": YES,
                "etc/systemd/logind.conf.d/a.conf": "",
            },
            "",
            id="a file hides its namesake",
        ),
        pytest.param(
            {MAIN: "[Login]\nKillUserProcesses=no\n", "run/systemd/logind.conf.d/a.conf": YES},
            "a",
            id="dropped in over main",
        ),
        pytest.param(
            {MAIN: "[Login]\n", "usr/lib/systemd/logind.conf": YES}, "", id="one main file"
        ),
        pytest.param({"usr/lib/systemd/logind.conf": YES}, "logind", id="main file of the system"),
        pytest.param({"etc/systemd/logind.conf.d/a.txt": YES}, "", id="not a setting's file"),
    ],
)
def test_files_count_as_systemd_counts_them(
    tmp_path: Path, files: dict[str, str], expected: str
) -> None:
    """Main file, then what is dropped in, by name; the file that has the last word is named."""
    found = logind.kill_setting("ann", host(tmp_path, files))

    assert Path(found).stem == expected
