"""What a rank finds in its process, and computes there, as a line of JSON."""

import importlib.util
import json
import os
import pickle
import random
import resource
import signal
import sys
import threading

SPEC = importlib.util.find_spec("torch")  # as libraries look whether it is there
BEFORE = {"had_torch": "torch" in sys.modules, "spec": SPEC and [SPEC.name, SPEC.origin]}

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402


class Squares(Dataset[int]):
    """Pickled by reference to this module, which is `__main__`."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index * index


def signals() -> dict[str, str]:
    """What each signal does here, as far as that is told."""
    handlers = {
        signum.name: signal.getsignal(signum)
        for signum in signal.valid_signals()
        if hasattr(signum, "name")
    }
    return {name: getattr(handler, "__name__", str(handler)) for name, handler in handlers.items()}


def state() -> dict[str, object]:
    """What is the same however the process came about."""
    umask = os.umask(0o022)
    os.umask(umask)
    main = sys.modules["__main__"]
    return {
        **BEFORE,
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "path": sys.path,
        "flags": str(sys.flags),
        "comm": open("/proc/self/comm").read(),
        "main": [
            main.__name__,
            main.__file__,
            main.__spec__ and main.__spec__.name,
            main.__package__,
        ],
        "main_globals": sorted(name for name in vars(main) if name.startswith("__")),
        "cwd": os.getcwd(),
        "umask": umask,
        "cores": sorted(os.sched_getaffinity(0)),
        "limits": [resource.getrlimit(n) for n in (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE)],
        "signals": signals(),
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "descriptors": {
            n: os.readlink(f"/proc/self/fd/{n}")
            for n in os.listdir("/proc/self/fd")
            if os.path.exists(f"/proc/self/fd/{n}") or n == "700"
        },
        "oom_score": open("/proc/self/oom_score_adj").read(),
        "threads": [threading.active_count(), threading.main_thread().native_id == os.getpid()],
        "torch": [torch.__spec__.name, torch.__spec__.origin, torch.get_num_threads()],
        "pickled": pickle.loads(pickle.dumps(Squares()))[3],  # noqa: S301
        "environ": dict(os.environ),
        "ours": sorted(name for name in sys.modules if "runner" in name),
    }


def drawn() -> list[object]:
    """What is random, and differs from rank to rank where nothing is seeded."""
    dropped = torch.nn.functional.dropout(torch.ones(64))
    numbers = [torch.rand(1).item(), np.random.rand(), random.random()]  # noqa: NPY002, S311
    return [*numbers, dropped.tolist()]


def main() -> None:
    found = {"state": state(), "drawn": drawn()}
    torch.manual_seed(int(os.environ["RANK"]))
    found["seeded"] = [torch.rand(1).item(), torch.randn(3).tolist()]
    dist.init_process_group("gloo")
    total = torch.ones(1) * dist.get_rank()
    dist.all_reduce(total)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    found["step"] = [total.item(), model.module.weight.tolist()]
    loader = DataLoader(Squares(), 4, num_workers=2, multiprocessing_context="fork")
    found["loaded"] = [batch.tolist() for batch in loader]
    dist.destroy_process_group()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
