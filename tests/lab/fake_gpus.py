"""A stand-in for NVML and its GPUs: a library that reads what it says from a file.

On a host of the lab it is where NVML may be, below /run, and the kernel seems to have the driver;
both are that host's own and gone with it. In a test on this machine, `runner.host.gpu` is told
where it is.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from runner.host.gpu import nvml, query
from tests.lab.lab import Host, need
from tests.lab.waiting import PATIENCE

HOST_FOLDER = "/run/opengl-driver/lib"
LIBRARY = "libnvidia-ml.so.1"
NAME = "NVIDIA H100 80GB HBM3"
NO_PROCESSES: tuple[tuple[int, int], ...] = ()

_SOURCE = r"""
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
typedef unsigned int u; typedef unsigned long long ull;
typedef struct { long util; long long used, total, power, temp, clocks; int n;
                 struct { u pid; ull memory; } user[32]; } gpu;
static char mode[32]; static gpu gpus[64]; static int count;
static int load(void) {  /* of a file that is replaced by a rename */
  FILE *file = fopen(STATE, "r"); char line[4096];
  if (!file) return 999;
  count = 0; mode[0] = 0;
  if (fgets(line, sizeof line, file)) sscanf(line, "%31s", mode);
  while (count < 64 && fgets(line, sizeof line, file)) {
    gpu *g = &gpus[count]; int used = 0; char *at = line;
    memset(g, 0, sizeof *g);
    if (sscanf(at, "%ld %lld %lld %lld %lld %lld%n", &g->util, &g->used, &g->total, &g->power,
               &g->temp, &g->clocks, &used) < 6) break;
    for (at += used; g->n < 32 && sscanf(at, " %u:%llu%n", &g->user[g->n].pid,
                                         &g->user[g->n].memory, &used) == 2; at += used) g->n++;
    count++;
  }
  fclose(file);
  if (!strcmp(mode, "hang")) for (;;) pause();
  if (!strcmp(mode, "crash")) { signal(SIGSEGV, SIG_DFL); raise(SIGSEGV); }
  return atoi(mode);
}
static int one(void *d, gpu **g) {
  int code = load(), index = (int)(long)d - 0x1000;
  if (!code && index >= count) code = 15;
  *g = &gpus[index]; return code;
}
#define GET(NAME, TYPE, FIELD, ARGS) int NAME(void *d ARGS, TYPE *out) { \
  gpu *g; int code = one(d, &g); if (code) return code; \
  if (g->FIELD < 0) return 3; *out = (TYPE)g->FIELD; return 0; }
#define COMMA_KIND , u kind
int nvmlInit_v2(void) { return load(); }
const char *nvmlErrorString(u code) {
  return code == 15 ? "GPU is lost" : code == 3 ? "Not Supported" : "Unknown Error"; }
int nvmlSystemGetDriverVersion(char *s, u n) { strncpy(s, "550.54.15", n); return 0; }
int nvmlDeviceGetCount_v2(u *n) { int code = load(); *n = count; return code; }
int nvmlDeviceGetHandleByIndex_v2(u i, void **d) { *d = (void *)(long)(0x1000 + i); return 0; }
int nvmlDeviceGetName(void *d, char *s, u n) { strncpy(s, GPU_NAME, n); return 0; }
int nvmlDeviceGetUUID(void *d, char *s, u n) {
  snprintf(s, n, "GPU-%d", (int)(long)d - 0x1000); return 0; }
int nvmlDeviceGetUtilizationRates(void *d, u *rates) {
  gpu *g; int code = one(d, &g); if (code) return code;
  if (g->util < 0) return 3;
  rates[0] = g->util; rates[1] = g->util / 2; return 0; }
int nvmlDeviceGetMemoryInfo_v2(void *d, struct { u version; ull total, reserved, free, used; } *m) {
  gpu *g; int code = one(d, &g); if (code) return code;
  if (g->used < 0) return 3;
  if (m->version != (sizeof *m | 2 << 24)) return 25;
  m->total = g->total; m->used = g->used; m->free = g->total - g->used; m->reserved = 0; return 0; }
GET(nvmlDeviceGetPowerUsage, u, power, )
GET(nvmlDeviceGetTemperature, u, temp, COMMA_KIND)
GET(nvmlDeviceGetCurrentClocksThrottleReasons, ull, clocks, )
int nvmlDeviceGetComputeRunningProcesses_v3(void *d, u *n,
    struct { u pid; ull memory; u gi, ci; } *list) {
  gpu *g; int code = one(d, &g); if (code) return code;
  if (*n < (u)g->n) return 7;
  for (int i = 0; i < g->n; i++) {
    list[i].pid = g->user[i].pid; list[i].memory = g->user[i].memory;
    list[i].gi = list[i].ci = 0xFFFFFFFF; }
  *n = g->n; return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *v) { *v = 12040; return 0; }
int nvmlDeviceGetTotalEccErrors(void *d, u type, u counter, ull *n) {
  *n = 0x100000000ULL + counter; return type == 1 ? 0 : 2; }
int nvmlDeviceGetRemappedRows(void *d, u *c, u *n, u *pending, u *failed) {
  *c = *n = *failed = 0; *pending = 1; return 0; }
"""


@dataclass(frozen=True)
class FakeGpu:
    """What NVML says of one GPU; None is not supported. Processes: pid, and bytes of memory."""

    utilization: int | None = 0
    memory_used: int | None = 0
    memory_total: int = 80 << 30
    power_w: float | None = 100.0
    temperature_c: int | None = 40
    clock_reasons: int | None = 0  # the bits of nvmlClocksEventReasons
    processes: tuple[tuple[int, int], ...] = NO_PROCESSES

    def to_line(self) -> str:
        milliwatts = None if self.power_w is None else round(1000 * self.power_w)
        memory = (self.memory_used, self.memory_total)
        values = (self.utilization, *memory, milliwatts, self.temperature_c, self.clock_reasons)
        words = ["-1" if value is None else str(value) for value in values]
        return " ".join([*words, *(f"{pid}:{memory}" for pid, memory in self.processes)]) + "\n"


def state(gpus: Sequence[FakeGpu], mode: str = "0") -> str:
    """Return the text of the library's file; a mode is "hang", "crash", or an error code."""
    return f"{mode}\n" + "".join(gpu.to_line() for gpu in gpus)


class HostGpus:
    """The GPUs of a host of the lab, until its power is cut."""

    def __init__(self, host: Host, folder: Path) -> None:
        self._host = host
        library = build(folder, f"{HOST_FOLDER}/state")
        self.set()
        host.sh(
            f"cp {library} {HOST_FOLDER}/{LIBRARY}\n"
            "mountpoint -q /proc/driver || mount -t tmpfs fake-driver /proc/driver\n"
            "mkdir -p /proc/driver/nvidia\n"
            "echo 'NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15' "
            "> /proc/driver/nvidia/version",
            user="root",
        )

    def set(self, *gpus: FakeGpu, mode: str = "0") -> None:
        self._host.write(f"{HOST_FOLDER}/new", state(gpus, mode), 0o644, user="root")
        self._host.sh(f"mv {HOST_FOLDER}/new {HOST_FOLDER}/state", user="root")

    def remove(self) -> None:
        self._host.sh(
            f"rm -rf {Path(HOST_FOLDER).parent}\n"
            "if mountpoint -q /proc/driver; then umount -l /proc/driver; fi",
            user="root",
        )


class LocalGpus:
    """The GPUs of this machine, for this process and its children."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._state = folder / "state"
        library = build(folder, str(self._state))
        monkeypatch.setattr(query, "DRIVER_PATHS", ("/",))
        monkeypatch.setattr(nvml, "LIBRARIES", (str(library),))
        self.set()

    def set(self, *gpus: FakeGpu, mode: str = "0") -> None:
        new = self._state.with_suffix(".new")
        new.write_text(state(gpus, mode))
        new.replace(self._state)


def build(folder: Path, state_path: str) -> Path:
    """Compile the library; skip the test where there is no compiler."""
    need("" if shutil.which("gcc") else "no gcc")
    source, library = folder / "fake_nvml.c", folder / LIBRARY
    source.write_text(_SOURCE)
    defines = [f'-DSTATE="{state_path}"', f'-DGPU_NAME="{NAME}"']
    command = ["gcc", "-w", "-shared", "-fPIC", *defines, "-o", str(library), str(source)]
    subprocess.run(command, check=True, timeout=60 * PATIENCE)
    library.chmod(0o755)
    return library
