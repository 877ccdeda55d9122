"""Samples: what the sampler costs, in percent of a core.

    python -m benchmarks.sampling [--gpus 8] [--interval 5] [--samples 200]

The cost is the CPU time of samples of this machine and of stand-ins for GPUs, taken one after the
other, over that of as long a loop on one core: a ratio in one run. A driver's own time in the
kernel is not in it.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

from runner.core.wire.paths import RunPaths
from runner.host.gpu import nvml, query
from runner.host.sampling import Sampler, write_sample
from tests.lab.fake_gpus import FakeGpu, build, state


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--interval", type=float, default=5.0)
    parser.add_argument("--samples", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        print("GPUs  CPU per sample  of a core  bytes")
        for gpus in (0, options.gpus):
            seconds, size = cost(Path(name), gpus, options.samples)
            share = 100 * seconds / options.interval
            print(f"{gpus:4}  {1000 * seconds:11.2f} ms  {share:7.3f} %  {size:5}")


def cost(folder: Path, gpus: int, count: int) -> tuple[float, int]:
    """Return the CPU seconds of a sample, child included, and the bytes of its line."""
    library = build(folder, str(folder / "state"))
    nvml.LIBRARIES = (str(library),)
    query.DRIVER_PATHS = ("/",) if gpus else ("/none",)
    processes = ((1, 1 << 30),)
    (folder / "state").write_text(state([FakeGpu(98, 1 << 36, processes=processes)] * gpus))
    paths = RunPaths(str(folder), f"r{gpus}", "n1")
    Path(paths.attempt_folder(0)).mkdir(parents=True)
    sampler = Sampler("n1")
    _take(sampler)
    before, line = _cpu_seconds(), b""
    began = time.process_time()
    for _ in range(count):
        line = _take(sampler)
        write_sample(paths.samples(0), line)
    own_s = time.process_time() - began
    sampler.gpus.close()
    child_s = _cpu_seconds() - before
    return (own_s + child_s) / count, len(line)


def _take(sampler: Sampler) -> bytes:
    while (sample := sampler.poll()) is None:
        time.sleep(0.01)
    return sample.to_line().encode()


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
