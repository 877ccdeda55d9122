"""Identity of each rank in one line: the quickest proof that a cluster works.

By hand, alone or as two ranks:

    python env.py
    torchrun --standalone --nproc_per_node=2 env.py

A line reads `host=gpu1 rank=3 local_rank=1 world_size=8 master=10.0.0.1:29512 device=cuda:1
(NVIDIA H200)`. Only the standard library is needed, and torch where the host may have GPUs.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path


def main() -> None:
    """Print the line at once, so that lines of several ranks never mix."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    master = os.environ.get("MASTER_ADDR", "")
    port = os.environ.get("MASTER_PORT", "")
    sys.stdout.write(
        f"host={socket.gethostname()} rank={os.environ.get('RANK', '0')} local_rank={local_rank} "
        f"world_size={os.environ.get('WORLD_SIZE', '1')} "
        f"master={f'{master}:{port}' if master else 'none'} device={find_device(local_rank)}\n"
    )
    sys.stdout.flush()


def find_device(local_rank: int) -> str:
    """Return this rank's device; torch is imported only where there may be GPUs, as it is slow."""
    if not may_have_gpus():
        return "cpu"
    try:
        import torch  # noqa: PLC0415 - see above
    except ImportError:
        return "unknown (no torch)"
    count = torch.cuda.device_count()
    if count == 0:
        return "cpu"
    if local_rank >= count:
        return f"none (local rank {local_rank} of {count} GPUs)"
    return f"cuda:{local_rank} ({torch.cuda.get_device_name(local_rank)})"


def may_have_gpus() -> bool:
    """Return whether this process may see a GPU: not all are hidden, and a driver is loaded."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1"):
        return False
    # A container may hold /dev/nvidia3 alone; the others are WSL's and AMD's.
    drivers = ("nvidia[0-9]*", "dxg", "kfd")
    return any(path for pattern in drivers for path in Path("/dev").glob(pattern))


if __name__ == "__main__":
    main()
