"""A stand-in for torchrun where torch is not what is tested: N ranks, TERM forwarded, 1 if one fails.

    minirun.py N PROGRAM ARGS...

Like torchrun it starts every rank in its own session.
"""

import os
import signal
import subprocess
import sys
import time


def main() -> int:
    """Run the ranks to their end."""
    count, program = int(sys.argv[1]), sys.argv[2:]
    ranks = [
        subprocess.Popen(
            program,
            env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            start_new_session=True,
        )
        for rank in range(count)
    ]

    def forward(signum: int, _: object) -> None:
        for rank in ranks:
            if rank.poll() is None:
                os.killpg(rank.pid, signum)

    signal.signal(signal.SIGTERM, forward)
    while any(rank.poll() is None for rank in ranks):
        if any(rank.poll() for rank in ranks):
            forward(signal.SIGTERM, None)
        time.sleep(0.02)
    return 1 if any(rank.returncode for rank in ranks) else 0


if __name__ == "__main__":
    sys.exit(main())
