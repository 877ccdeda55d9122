"""The shipped task `rpc_parameter_server`, by hand under plain torchrun."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from tests.lab.by_hand import TASKS, torchrun
from tests.lab.training import ROUNDING, progress, train

pytestmark = [
    pytest.mark.tasks,
    # torch's distributed optimizers use it as they are imported.
    pytest.mark.filterwarnings("ignore:.torch.jit.*is deprecated:DeprecationWarning"),
]

SCRIPT = str(TASKS / "rpc_parameter_server.py")


@pytest.mark.parametrize("trainers", [2, pytest.param(3, marks=pytest.mark.all)])
def test_the_server_holds_what_one_process_arrives_at(tmp_path: Path, trainers: int) -> None:
    """Parameters and losses are those of SGD with the whole batch, whatever the trainers."""
    path = tmp_path / "new" / "server.pt"
    few = ("--steps=12", "--log_every=1", "--seed=3", f"--checkpoint={path}")
    done = torchrun(trainers + 1, SCRIPT, *few)

    import torch  # noqa: PLC0415 - only the tests that run may need it
    from torch.nn.functional import cross_entropy  # noqa: PLC0415

    from runner.tasks import rpc_parameter_server as task  # noqa: PLC0415

    model = task.build_model(3)
    args = Namespace(seed=3, batch_size=420)

    def compute_loss(step: int) -> torch.Tensor:
        samples, labels = task.load_batch(step, args)
        return cross_entropy(model(samples), labels)

    expected = train(compute_loss, torch.optim.SGD(model.parameters(), 0.5), 12)
    assert progress(done.stdout, 12) == pytest.approx(expected, abs=ROUNDING)
    assert expected[-1] < 0.8 * expected[0]
    assert list(path.parent.iterdir()) == [path]
    server = torch.load(path, weights_only=True)
    assert server.keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        torch.testing.assert_close(server[name], value, rtol=0, atol=ROUNDING, msg=name)
