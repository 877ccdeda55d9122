"""What starts us, as it was typed."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import runner


@pytest.mark.parametrize(
    ("typed", "printed"),
    [
        ("{python} -X dev -m runner", "{python} -X dev -m runner"),
        ("runner", "runner"),
        ("{python} -c 'from runner.cli.main import entry; entry()'", "runner"),
    ],
)
def test_printed_commands_begin_with_what_was_typed(
    typed: str, printed: str, tmp_path: Path
) -> None:
    """The script alone where PATH has it, else with its path; `runner` where nobody typed one."""
    places = {"python": sys.executable, "scripts": tmp_path / "my scripts"}
    script = tmp_path / "my scripts" / "runner"
    script.parent.mkdir()
    script.write_text(f"#!{sys.executable}\nfrom runner.cli.main import entry\nentry()\n")
    script.chmod(0o755)
    found = f":{script.parent}" if typed == "runner" else ""
    env = {"PATH": f"/usr/bin:/bin{found}", "PYTHONPATH": str(Path(runner.__file__).parents[1])}
    command = typed.format(**{name: shlex.quote(str(place)) for name, place in places.items()})
    done = subprocess.run(
        ["sh", "-c", f"{command} clean --wat"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done
    shown = printed.format(**places)
    begin = shlex.quote(shown) if shown.startswith(str(script.parent)) else shown
    assert done.stderr.splitlines()[-1] == f"    `{begin} clean --help` lists the flags"
