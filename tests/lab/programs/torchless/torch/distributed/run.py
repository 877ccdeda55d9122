"""A stand-in for torchrun: the same words, the same processes, and none of its seconds.

Like torchrun it starts every rank in its own session, passes TERM on and KILL after
PET_SHUTDOWN_TIMEOUT, and exits 1 if one fails.
"""

import os
import signal
import string
import subprocess
import sys
import time


def option(name: str, words: list[str]) -> int:
    (found,) = (word.partition("=")[2] for word in words if word.startswith(f"--{name}="))
    return int(found)


def environment(local: int, words: list[str]) -> dict[str, str]:
    each, nodes = option("nproc_per_node", words), option("nnodes", words)
    rank = option("node_rank", words) * each + local
    told = {"RANK": rank, "LOCAL_RANK": local, "WORLD_SIZE": each * nodes}
    return {**os.environ, **{name: str(value) for name, value in told.items()}}


def substituted(local: int, program: list[str]) -> list[str]:
    """Return the program with torchrun's macro replaced, and `$$` as `$`."""
    return [string.Template(word).safe_substitute(local_rank=str(local)) for word in program]


def main() -> int:
    at = sys.argv.index("--")
    words, program = sys.argv[1:at], sys.argv[at + 1 :]
    python = [] if "--no_python" in words else [sys.executable, "-u"]
    if "--rdzv_backend=c10d" in words:
        import rounds  # type: ignore[import-not-found]  # noqa: PLC0415 - on PYTHONPATH with torch

        result: int = rounds.main(
            option("max_restarts", words), [*python, *substituted(0, program)]
        )
        return result
    ranks = [
        subprocess.Popen(
            [*python, *substituted(local, program)],
            env=environment(local, words),
            start_new_session=True,
        )
        for local in range(option("nproc_per_node", words))
    ]

    patience = float(os.environ.get("PET_SHUTDOWN_TIMEOUT", "30"))
    deadlines: list[float] = []

    def send(signum: int) -> None:
        for rank in ranks:
            if rank.poll() is None:
                os.killpg(rank.pid, signum)

    def end(*_: object) -> None:
        deadlines.append(time.monotonic() + patience)
        send(signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    while any(rank.poll() is None for rank in ranks):
        if not deadlines and any(rank.poll() for rank in ranks):
            end()
        if deadlines and time.monotonic() > deadlines[0]:
            send(signal.SIGKILL)
        time.sleep(0.02)
    return 1 if any(rank.returncode for rank in ranks) else 0


if __name__ == "__main__":
    sys.exit(main())
