"""`init` writes YAML that composes and explains itself, and overwrites nothing."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from runner.cli.main import main
from runner.config.compose import open_composer
from runner.core.launch_request import LaunchRequest
from runner.core.wire.codec import encode
from tests.golden.conftest import Replay
from tests.golden.here import write
from tests.golden.test_specs import node_text

CLUSTER, TASK = Path("conf/cluster/mine.yaml"), Path("conf/task/train.yaml")
PRIMARY = Path("conf/runner.yaml")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the test stands; nobody answers unless the test does."""
    folder = tmp_path / "project"
    folder.mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Answer what will be asked, in this order, and then Ctrl-C; return what was asked."""

    def answer(*texts: str) -> list[str]:
        asked: list[str] = []

        def read(question: str) -> str:
            asked.append(question)
            if len(asked) > len(texts):
                raise KeyboardInterrupt
            return texts[len(asked) - 1]

        monkeypatch.setattr("click.termui.visible_prompt_func", read)
        monkeypatch.setattr("sys.stdin.isatty", lambda: True)
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        return asked

    return answer


def init(*words: str) -> None:
    assert main(["init", *words]) == 0


def composed(*words: str) -> LaunchRequest:
    """What a launch composes of the files that were written."""
    with open_composer(for_launches=True) as composer:
        return composer.compose(words)


def test_what_is_written_composes(capsys: pytest.CaptureFixture[str], replay: Replay) -> None:
    """It is what was given, and called an example where nothing was."""

    def written(words: list[str]) -> str:
        shutil.rmtree("conf", ignore_errors=True)
        assert main(words) == 0
        said = capsys.readouterr().out
        page = [] if words[1:] else [said]
        for path in (*Path("conf/cluster").iterdir(), *Path("conf/task").iterdir()):
            text = path.read_text()
            if words[1:]:
                text = re.sub(r" *# (?!an example).*|^ *#.*\n", "", text, flags=re.MULTILINE)
                text = re.sub(r"\n+", "\n", text)
            page.append(f"{path}:\n{text}")
        spec = composed().spec
        page += [f"{node_text(encode(node))}\n" for node in spec.nodes]
        page.append(f"{spec.task.kind} {spec.task.target}, user {spec.cluster.ssh.user}\n")
        return "".join(page)

    replay("init.txt", written)
    shutil.rmtree("conf")


def test_files_that_are_there_stay(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second time changes nothing at all; a link is not followed."""
    write(folder, {str(PRIMARY): "# mine\n", str(TASK): "# mine, too\n"})
    CLUSTER.parent.mkdir()
    CLUSTER.symlink_to(folder / "elsewhere")
    init("--hosts=h1")
    said = capsys.readouterr().out
    assert said.startswith(f"kept   {CLUSTER}, as it is\nkept   {TASK}, as it is\nkept   {PRIMARY}")
    assert said.endswith("\n  runner cluster=mine task=train\n")
    assert (PRIMARY.read_text(), TASK.read_text()) == ("# mine\n", "# mine, too\n")
    assert not (folder / "elsewhere").exists()


def test_what_cannot_be_written_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Here `conf/task` is a file."""
    (folder / "conf").mkdir()
    (folder / "conf/task").touch()
    assert main(["init"]) == 2
    assert re.search(r"error: init: conf/task.* cannot be written: ", capsys.readouterr().err)


def test_questions_have_defaults(
    folder: Path, answers: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Enter takes what is shown; what is not legal is asked again; each fits 80 columns."""
    (folder / "main.py").touch()
    asked = answers("gpu1 gpu1", "gpu[1-2]:2200,far=ada@gpu9:22", "", "nope.py", "")
    init()
    assert asked[0] == asked[1]
    assert asked[3] == asked[4]
    assert asked[-1].endswith(" [main.py]: ")
    assert "'gpu1' names a machine a second time" in capsys.readouterr().out
    assert all(len(each) <= 80 and "\n" not in each for each in asked)
    spec = composed().spec
    assert [node.host for node in spec.nodes] == ["gpu1", "gpu2", "gpu9"]
    assert (spec.task.target, spec.cluster.python) == ("main.py", "python3")


def test_enter_alone_is_this_machine_and_the_example(
    folder: Path, answers: Callable[..., list[str]]
) -> None:
    """No machine and no program is made up: what is written works at once."""
    asked = answers("", "")
    init()
    assert [each.rpartition(" [")[2] for each in asked] == ["this machine]: ", "resnet18]: "]
    assert [str(path.relative_to(folder)) for path in folder.rglob("*.*")] == [str(PRIMARY)]
    spec = composed().spec
    assert (spec.cluster.name, spec.task.name) == ("local", "resnet18")


def test_who_has_enough_leaves_nothing(
    folder: Path, answers: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C at any question."""
    asked = answers("gpu1")
    assert main(["init"]) == 130
    assert capsys.readouterr().err.endswith("error: interrupted; nothing was started\n")
    assert (len(asked), [*folder.iterdir()]) == (2, [])


def test_what_is_commented_out_is_the_default() -> None:
    """With every key uncommented the cluster is the same."""
    init("--hosts=gpu1")
    before = composed("run_id=r").spec
    for file in (CLUSTER, TASK):
        text = file.read_text()
        file.write_text(re.sub(r"^( *)#(?=\w)", r"\1", text, flags=re.MULTILINE))
    assert composed("run_id=r", "task.args=null").spec == before
    assert composed().spec.task.words == ("--lr", "0.1", "--epochs", "3")
