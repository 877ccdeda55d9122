"""The shipped task `tensor_parallel`, by hand under plain torchrun."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from tests.lab.by_hand import python, torchrun
from tests.lab.launching import PROGRAMS, ROOT
from tests.lab.training import ROUNDING, progress, train

pytestmark = pytest.mark.tasks


PROGRAM = str(PROGRAMS / "mesh_gradients.py")
OTHERS = [
    pytest.param(*shape, marks=pytest.mark.all)
    for shape in ((1, 0), (3, 0), (2, 2), (2, 1), (4, 4))
]


@pytest.mark.parametrize(("ranks", "share"), [(4, 2), *OTHERS])
def test_gradients_and_losses_are_those_of_one_device(
    tmp_path: Path, ranks: int, share: int
) -> None:
    """On a mesh of 2 x 2 ranks each has a quarter of each split matrix; and on other meshes.

    With 0 the task chooses; one rank is started without torchrun, as its docstring says.
    """
    path = tmp_path / "mesh.pt"
    chosen = [f"--tensor_parallel={share}"] if share else []
    words = (
        PROGRAM,
        "tensor_parallel",
        str(path),
        "--steps=5",
        "--log_every=1",
        "--seed=3",
        *chosen,
    )
    done = torchrun(ranks, *words) if ranks > 1 else python(*words, PYTHONPATH=str(ROOT))

    import torch  # noqa: PLC0415 - only the tests that run may need it
    from torch.nn.functional import cross_entropy  # noqa: PLC0415

    from runner.tasks import tensor_parallel as task  # noqa: PLC0415

    model = task.build_model(3)
    args = Namespace(seed=3, batch_size=24)

    def compute_loss(step: int) -> torch.Tensor:
        sequences = task.load_batch(step, args)
        return cross_entropy(model(sequences[:, :-1]), sequences[:, 1:].flatten())

    compute_loss(1).backward()  # type: ignore[no-untyped-call]
    found = torch.load(path, weights_only=True)
    gradients = [parameter.grad for parameter in model.parameters()]
    torch.testing.assert_close(found["gradients"], gradients, rtol=0, atol=ROUNDING)
    for (name, parameter), local in zip(model.named_parameters(), found["local"], strict=True):
        if name.startswith("blocks.") and parameter.dim() == 2:
            assert local * ranks == pytest.approx(parameter.numel(), rel=0.05), name

    expected = train(compute_loss, torch.optim.AdamW(model.parameters(), 0.003), 5)
    losses = progress(done.stdout, 5, "tokens")
    assert losses == pytest.approx(expected, abs=5 * ROUNDING)
    assert expected[-1] < expected[0]
