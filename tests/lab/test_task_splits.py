"""Shipped tasks that split a model, by hand: what one device would compute; their checkpoints."""

from __future__ import annotations

import importlib
from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.lab.by_hand import EXAMPLES, assert_same, progress, python, torchrun
from tests.lab.launching import PROGRAMS

if TYPE_CHECKING:
    from torch import Tensor

pytestmark = [
    pytest.mark.tasks,
    # torch's distributed optimizers use it as they are imported.
    pytest.mark.filterwarnings("ignore:.torch.jit.*is deprecated:DeprecationWarning"),
]

STEPS = 6
FLAGS = (f"--steps={STEPS}", "--log_every=1", "--seed=3")
ROUNDING = 2e-6
"""Between sums of float32 in one order and in another, of numbers below 1."""


@dataclass(frozen=True)
class Alone:
    """A task's model, batches and losses on one device."""

    task: Any
    batch_size: int
    of_tokens: bool = False

    @property
    def model(self) -> Any:
        return self.task.build_model(3)

    def loss(self, model: Any, step: int) -> Tensor:
        from torch.nn.functional import cross_entropy  # noqa: PLC0415 - only what runs may need it

        args = Namespace(seed=3, batch_size=self.batch_size)
        if self.of_tokens:
            sequences = self.task.load_batch(step, args)
            return cross_entropy(model(sequences[:, :-1]), sequences[:, 1:].flatten())
        samples, labels = self.task.load_batch(step, args)
        return cross_entropy(model(samples), labels)

    def gradients(self) -> list[Tensor]:
        model = self.model
        self.loss(model, 1).backward()  # type: ignore[no-untyped-call]
        return [parameter.grad for parameter in model.parameters()]

    def losses(self, optimizer: str, rate: float) -> list[float]:
        import torch  # noqa: PLC0415

        model = self.model
        stepper = getattr(torch.optim, optimizer)(model.parameters(), rate)
        expected = []
        for step in range(1, STEPS + 1):
            loss = self.loss(model, step)
            stepper.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            stepper.step()
            expected.append(loss.item())
        assert expected[-1] < expected[0]
        return expected


def task_of(name: str) -> Any:
    return importlib.import_module(f"examples.{name}")


@pytest.mark.parametrize(
    ("name", "ranks", "batch_size", "more"),
    [("fsdp", 2, 96, ()), ("tensor_parallel", 4, 24, ("--tensor_parallel=2",))],
)
def test_shards_train_as_the_whole_model(
    name: str, ranks: int, batch_size: int, more: tuple[str, ...], tmp_path: Path
) -> None:
    """Gradients and losses, value by value: AdamW would not notice a wrong scale."""
    import torch  # noqa: PLC0415

    path = tmp_path / "mesh.pt"
    program = str(PROGRAMS / "mesh_gradients.py")
    done = torchrun(ranks, program, name, str(path), *FLAGS, *more)
    alone = Alone(task_of(name), batch_size, of_tokens=name == "tensor_parallel")
    found = torch.load(path, weights_only=True)
    torch.testing.assert_close(found["gradients"], alone.gradients(), rtol=0, atol=ROUNDING)
    for (label, whole), local in zip(alone.model.named_parameters(), found["local"], strict=True):
        if whole.dim() == 2 and (label.startswith("blocks.") or name == "fsdp"):
            assert local * ranks == pytest.approx(whole.numel(), rel=0.05), label
    unit = "tokens" if alone.of_tokens else "samples"
    losses = progress(done.stdout, STEPS, unit)
    assert losses == pytest.approx(alone.losses("AdamW", 0.003), abs=5 * ROUNDING)


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("pipeline", ("--schedule=gpipe",)),
        ("pipeline", ("--schedule=1f1b",)),
        ("rpc_pipeline", ()),
    ],
)
def test_stages_train_as_the_whole_model(name: str, flags: tuple[str, ...]) -> None:
    """The loss of each step: a wrong gradient would be seen in the next one, since this is SGD."""
    done = torchrun(2, str(EXAMPLES / f"{name}.py"), *FLAGS, *flags)
    expected = Alone(task_of(name), 96).losses("SGD", 0.05)
    assert progress(done.stdout, STEPS) == pytest.approx(expected, abs=ROUNDING)


def test_a_parameter_server_holds_what_one_process_arrives_at(tmp_path: Path) -> None:
    """Parameters and losses are those of SGD with the whole batch, whatever the trainers."""
    import torch  # noqa: PLC0415

    path = tmp_path / "new" / "server.pt"
    script = str(EXAMPLES / "rpc_parameter_server.py")
    done = torchrun(3, script, *FLAGS, f"--checkpoint={path}")
    alone = Alone(task_of("rpc_parameter_server"), 420)
    expected = alone.losses("SGD", 0.5)
    assert progress(done.stdout, STEPS) == pytest.approx(expected, abs=ROUNDING)
    assert list(path.parent.iterdir()) == [path]
    assert torch.load(path, weights_only=True).keys() == alone.model.state_dict().keys()


FSDP = str(EXAMPLES / "fsdp.py")
FEW = ("--log_every=1", "--seed=3")
DIES = """
import os, runpy, sys, torch.distributed.checkpoint as dcp
save = dcp.save
def die(state, **options):
    save(state, **options)
    if "model" in state:
        os._exit(9)
dcp.save = die
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


def load(folder: Path, aside: Path) -> dict[str, Any]:
    import torch  # noqa: PLC0415
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save  # noqa: PLC0415

    dcp_to_torch_save(folder, aside)
    state: dict[str, Any] = torch.load(aside, weights_only=True)
    return state


def test_a_checkpoint_of_shards(tmp_path: Path) -> None:
    """Another world size reads the same state, bit by bit; it is replaced whole or not at all."""
    folder = tmp_path / "new" / "state"
    trained = torchrun(2, FSDP, *FEW, "--steps=6", f"--checkpoint={folder}")
    again = tmp_path / "again"
    resumed = (*FEW, f"--resume={folder}")
    out = torchrun(3, FSDP, *resumed, "--steps=6", f"--checkpoint={again}").stdout

    assert out == f"loss {progress(trained.stdout, 6)[-1]:.4f} after 6 steps\n"
    assert len(list(folder.glob("save-000001/*.distcp"))) == 2
    assert len(list(again.glob("save-000001/*.distcp"))) == 3
    one = load(folder / "save-000001", tmp_path / "one.pt")
    assert_same(one, load(again / "save-000001", tmp_path / "other.pt"))
    assert (one["step"], len(one["model"]), len(one["optimizer"]["state"])) == (6, 20, 20)

    flags = (*resumed, "--steps=7", f"--checkpoint={folder}")
    dead = python("-c", DIES, FSDP, *flags)
    assert (dead.returncode, "new" in {path.name for path in folder.iterdir()}) == (9, True), dead
    assert_same(one, load(folder / "save-000001", tmp_path / "two.pt"))

    assert python(FSDP, *flags).returncode == 0
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*"))
    assert names == ["save-000002/.metadata", "save-000002/__0_0.distcp"], "none of more ranks"
    assert load(folder / "save-000002", tmp_path / "three.pt")["step"] == 7
