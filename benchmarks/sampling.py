"""Samples: what the sampler costs, in percent of a core, and how large samples of some hours are.

    python -m benchmarks.sampling [--gpus 8] [--interval 5] [--samples 200]

The cost is the CPU time of samples of this machine and of stand-ins for GPUs, taken one after the
other, over that of as long a loop on one core: a ratio in one run. A driver's own time in the
kernel is not in it.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import tempfile
import time
from pathlib import Path

from runner.core.wire.files import MAX_SAMPLE_FILE
from runner.core.wire.paths import RunPaths
from runner.core.wire.run_info import GpuSample, GpuUser, Sample
from runner.host.gpu import nvml, query
from runner.host.sampling import Sampler, write_sample
from tests.lab.fake_gpus import FakeGpu, build, state

HOURS = (1, 8, 24, 240)


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
        print(f"\nhours  samples kept with {options.gpus} GPUs  MB  longest gap s  bound MB")
        for hours in HOURS:
            kept, size, gap = kept_of(Path(name), hours, options.gpus, options.interval)
            bound = MAX_SAMPLE_FILE / 1e6
            print(f"{hours:5}  {kept:24}  {size / 1e6:.2f}  {gap:13.0f}  {bound:.2f}")


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


def kept_of(folder: Path, hours: int, gpus: int, interval_s: float) -> tuple[int, int, float]:
    """Return how many samples of so many hours are kept, their bytes, and the longest gap."""
    user = GpuUser(1000, "alice", "python train.py", 1 << 36, "0101-1200-train-abcd")
    each = [GpuSample(i, "NVIDIA H100 80GB HBM3", 98, 1 << 36, 1 << 37) for i in range(gpus)]
    loads = tuple(GpuSample(**{**vars(gpu), "power_w": 650.0, "users": (user,)}) for gpu in each)
    paths = RunPaths(str(folder), f"h{hours}", "n1")
    Path(paths.attempt_folder(0)).mkdir(parents=True)
    load = (128, 55.5, 1 << 37, 1 << 40)
    elapsed_s = 0.0
    while elapsed_s < 3600 * hours:
        line = Sample("n1", 0, 1.7e9 + elapsed_s, *load, loads).to_line().encode()
        size = write_sample(paths.samples(0), line)
        interval_s *= 2 if size and size > MAX_SAMPLE_FILE else 1
        elapsed_s += interval_s
    text = Path(paths.samples(0)).read_text()
    walls = [float(line.partition('"wall":')[2].partition(",")[0]) for line in text.splitlines()]
    gaps = [later - wall for wall, later in itertools.pairwise(walls)]
    return len(walls), len(text), max(gaps)


if __name__ == "__main__":
    main()
