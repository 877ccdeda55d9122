"""The shipped task `rpc_pipeline`, by hand under plain torchrun."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from tests.lab.by_hand import TASKS, torchrun
from tests.lab.launching import PROGRAMS
from tests.lab.training import ROUNDING, progress, train

pytestmark = [
    pytest.mark.tasks,
    # torch's distributed optimizers use it as they are imported.
    pytest.mark.filterwarnings("ignore:.torch.jit.*is deprecated:DeprecationWarning"),
]

PROGRAM = str(PROGRAMS / "rpc_pipeline_gradients.py")


@pytest.mark.all  # a detail of one task
def test_more_micro_batches_than_threads_of_rpc() -> None:
    """TensorPipe has 16 by default, and one waits for each micro-batch under way."""
    script = str(TASKS / "rpc_pipeline.py")
    done = torchrun(2, script, "--steps=2", "--microbatches=24", "--log_every=1")
    whole = torchrun(2, script, "--steps=2", "--microbatches=1", "--log_every=1")

    assert progress(done.stdout, 2) == pytest.approx(progress(whole.stdout, 2), abs=ROUNDING)


@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.all)])
def test_outputs_and_gradients_are_those_of_the_unsplit_model(tmp_path: Path, workers: int) -> None:
    """Of the first batch, value by value, and the losses of the steps after it."""
    path = tmp_path / "pipeline.pt"
    done = torchrun(workers, PROGRAM, str(path), "--steps=6", "--log_every=1", "--seed=3")

    import torch  # noqa: PLC0415 - only the tests that run may need it
    from torch.nn.functional import cross_entropy  # noqa: PLC0415

    from runner.tasks import rpc_pipeline as task  # noqa: PLC0415

    model = task.build_model(3)
    args = Namespace(seed=3, batch_size=96)
    samples, labels = task.load_batch(1, args)
    outputs = model(samples)
    cross_entropy(outputs, labels).backward()  # type: ignore[no-untyped-call]
    found = torch.load(path, weights_only=True)
    torch.testing.assert_close(found["outputs"], outputs.detach())
    gradients = [parameter.grad for parameter in model.parameters()]
    assert len(gradients) == 16
    torch.testing.assert_close(found["gradients"], gradients, rtol=0, atol=ROUNDING)

    def compute_loss(step: int) -> torch.Tensor:
        samples, labels = task.load_batch(step, args)
        return cross_entropy(model(samples), labels)

    expected = train(compute_loss, torch.optim.SGD(model.parameters(), 0.05), 6)
    assert progress(done.stdout, 6) == pytest.approx(expected, abs=ROUNDING)
