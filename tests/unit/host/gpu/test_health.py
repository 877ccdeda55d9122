"""How well GPUs are, read from answers of nvidia-smi; `fixtures/nvidia_smi` says whose they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.core.model.hardware import Driver, GpuHealth
from runner.host.gpu import health, nvidia_smi

FIXTURES = Path(__file__).parents[3] / "fixtures" / "nvidia_smi"
IDLE, POWER_CAP = 1, 4


def answer(name: str) -> str:
    """What a file holds."""
    return (FIXTURES / f"{name}.txt").read_text(encoding="utf-8")


def read(name: str) -> list[GpuHealth]:
    """The health it tells, in the order of the GPUs."""
    found = health.parse_health(answer(name), "/none")
    return [found[index] for index in sorted(found)]


WELL = GpuHealth("0000:00:09", 0, 0, False, False, IDLE, True, False, None, 16, 16)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("h100", WELL),
        (
            "h100_mig",
            GpuHealth("0000:00:09", 0, 0, None, None, IDLE, True, True, None, 16, 16),
        ),
        (
            "l40s",
            GpuHealth("0000:01:00", 0, 0, False, False, 0, False, None, None, 16, 16),
        ),
        (
            "rtx_4080",
            GpuHealth(
                "0000:01:00",
                throttle_reasons=IDLE,
                persistent=False,
                pcie_width=16,
                pcie_width_max=16,
            ),
        ),
        (
            "rtx_2080",
            GpuHealth(
                "0000:0c:00",
                throttle_reasons=IDLE,
                persistent=False,
                pcie_width=16,
                pcie_width_max=16,
            ),
        ),
        (
            "rtx_2080_windows",
            GpuHealth("0000:0c:00", throttle_reasons=IDLE, pcie_width=16, pcie_width_max=16),
        ),
        (
            "t4_old",
            GpuHealth("0000:00:1e", 0, 0, False, None, IDLE, False, None, None, 8, 16),
        ),
        ("vgpu", GpuHealth("0000:02:00", persistent=True)),
    ],
)
def test_each_kind_tells_what_it_can(name: str, expected: GpuHealth) -> None:
    """What it does not know stays None: no kind is well, or ill, by its silence."""
    assert read(name) == [expected]


def test_bad_memory_is_told_by_pages_or_rows() -> None:
    """Pages were retired up to Volta, rows are remapped since Ampere."""
    first, second = read("v100")
    assert (first.volatile, first.aggregate, first.repair_pending) == (0, 2, False)
    assert (second.volatile, second.repair_pending, second.repair_failed) == (3, True, None)
    assert (second.pcie_width, second.pcie_width_max, second.throttle_reasons) == (8, 16, 0x48)
    well, pending, failed = read("a100_repair")
    assert (well.throttle_reasons, well.repair_pending, well.repair_failed) == (
        POWER_CAP,
        False,
        False,
    )
    assert (pending.volatile, pending.repair_pending, pending.repair_failed) == (2, True, False)
    assert (failed.bus, failed.repair_failed, failed.mig) == ("000a:56:00", True, True)


def test_a_lost_gpu_tells_nothing_and_costs_the_others_nothing() -> None:
    """A sentence between the rows is skipped."""
    found = health.parse_health(answer("lost"), "/none")
    assert found[0].bus == "0000:3b:00"
    assert found[1] == GpuHealth(error="GPU is lost")
    assert found[3] == GpuHealth("0000:da:00", mig=False, error="GPU requires reset")
    assert sorted(found) == [0, 1, 3]


@pytest.mark.parametrize("text", ["", "No devices were found\n", 'Field "x" is not a valid field'])
def test_what_is_no_answer_tells_of_nobody(text: str) -> None:
    """No sentence is taken for a header or a row."""
    assert health.parse_health(text) == {}


def test_instances_are_counted_below_their_gpu() -> None:
    """As `nvidia-smi -L` lists them; a divided GPU that it lists none of has none."""
    found = health.parse_health(answer("h100_mig"), "/none")
    assert health.with_mig_counts(found, answer("h100_mig_list"))[0].instances == 4
    alone = answer("h100_mig_list").splitlines()[0]
    assert health.with_mig_counts(found, alone)[0].instances == 0
    assert health.with_mig_counts(health.parse_health(answer("h100")), alone)[0].instances == 0


def test_only_fields_that_are_known_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that this nvidia-smi does not know would cost all the others."""
    asked: list[str] = []

    def output(argv: list[str]) -> tuple[int, str]:
        asked.append(argv[1])
        return 0, answer("help_465" if argv[1] == "--help-query-gpu" else "rtx_2080")

    monkeypatch.setattr(nvidia_smi, "run_nvidia_smi", output)
    assert health.by_smi("nvidia-smi", str(tmp_path))[0].throttle_reasons == IDLE
    fields = "index,pci.bus_id,persistence_mode,pcie.link.width.current,pcie.link.width.max"
    assert asked[1:] == [f"--query-gpu={fields},clocks_throttle_reasons.active"]


def test_an_nvidia_smi_without_help_is_not_asked_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its health is not known."""
    monkeypatch.setattr(
        nvidia_smi, "run_nvidia_smi", lambda _: (1, "ERROR: Option is not recognized")
    )
    assert health.by_smi("nvidia-smi") == {}


def test_the_daemon_keeps_the_driver_too(tmp_path: Path) -> None:
    """Its own mode is off, but nvidia-persistenced runs."""
    (tmp_path / "run/nvidia-persistenced").mkdir(parents=True)
    (tmp_path / "run/nvidia-persistenced/socket").touch()
    found = health.parse_health(answer("l40s"), str(tmp_path))
    assert found[0].persistent is True


@pytest.mark.parametrize(("text", "node"), [("1\n", 1), ("-1\n", None)])
def test_the_numa_node_is_the_kernels(tmp_path: Path, text: str, node: int | None) -> None:
    """A machine that has but one may not say."""
    place = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    place.mkdir(parents=True)
    (place / "numa_node").write_text(text)
    assert health.parse_health(answer("l40s"), str(tmp_path))[0].numa_node == node


@pytest.mark.parametrize(
    ("line", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC",
            "535.104.05",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build",
            "570.158.01",
        ),
        ("", ""),
    ],
)
def test_the_kernel_knows_its_driver(tmp_path: Path, line: str, version: str) -> None:
    """Where the library does not."""
    place = tmp_path / "proc/driver/nvidia"
    place.mkdir(parents=True)
    (place / "version").write_text(f"{line}\nGCC version:  gcc version 12.3.0 (Ubuntu)\n")
    assert health.driver(None, str(tmp_path)) == Driver(version)
