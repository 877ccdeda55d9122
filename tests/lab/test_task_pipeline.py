"""The shipped task `pipeline`, by hand under plain torchrun."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from tests.lab.by_hand import TASKS, python, torchrun
from tests.lab.launching import PROGRAMS, ROOT
from tests.lab.training import ROUNDING, progress, train

pytestmark = pytest.mark.tasks


PROGRAM = str(PROGRAMS / "pipeline_gradients.py")


@pytest.mark.parametrize(
    "stages", [pytest.param(1, marks=pytest.mark.all), 2, pytest.param(3, marks=pytest.mark.all)]
)
def test_outputs_and_gradients_are_those_of_the_unsplit_model(tmp_path: Path, stages: int) -> None:
    """By both schedules: of the first batch, value by value; and the losses of steps after it.

    One stage is started without torchrun, as the task's docstring says.
    """
    path = tmp_path / "pipeline.pt"
    words = (PROGRAM, str(path), "--steps=6", "--log_every=1", "--seed=3")
    done = torchrun(stages, *words) if stages > 1 else python(*words, PYTHONPATH=str(ROOT))

    import torch  # noqa: PLC0415 - only the tests that run may need it
    from torch.nn.functional import cross_entropy  # noqa: PLC0415

    from runner.tasks import pipeline as task  # noqa: PLC0415

    model = task.build_model(3)
    args = Namespace(seed=3, batch_size=96)
    samples, labels = task.load_batch(1, args)
    outputs = model(samples)
    loss = cross_entropy(outputs, labels)
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = [parameter.grad for parameter in model.parameters()]
    assert len(gradients) == 16
    every = torch.load(path, weights_only=True)
    assert every.keys() == {"gpipe", "1f1b"}
    for schedule, found in every.items():
        torch.testing.assert_close(found["outputs"], outputs.detach(), msg=schedule)
        torch.testing.assert_close(found["loss"], loss.detach(), msg=schedule)
        torch.testing.assert_close(found["gradients"], gradients, rtol=0, atol=ROUNDING)

    def compute_loss(step: int) -> torch.Tensor:
        samples, labels = task.load_batch(step, args)
        return cross_entropy(model(samples), labels)

    expected = train(compute_loss, torch.optim.SGD(model.parameters(), 0.05), 6)
    assert progress(done.stdout, 6) == pytest.approx(expected, abs=ROUNDING)


OLDER = """
import runpy, sys, torch.distributed.pipelining as pipelining
class PipelineStage:
    def __init__(self, submodule, stage_index, num_stages, device, input_args, output_args=None):
        pass
pipelining.PipelineStage = PipelineStage
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""
"""The signature of torch 2.5."""


def test_a_torch_that_does_not_infer_shapes_is_refused() -> None:
    """By its signature, before the ranks meet: one line and exit code 2."""
    done = python("-c", OLDER, str(TASKS / "pipeline.py"), RANK="0", WORLD_SIZE="2")

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done
    assert done.stderr.startswith("pipeline.py: error: this torch, ")
    assert done.stderr.endswith(" that infers shapes: use 2.6 or newer\n")
