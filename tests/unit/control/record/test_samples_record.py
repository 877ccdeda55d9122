"""The samples of all hosts in one file; hosts lie."""

from __future__ import annotations

from pathlib import Path

from runner.control.record.samples_record import merge
from runner.core.model.samples import GpuSample, Sample, parse_sample


def put(folder: Path, node: str, attempt: int, *samples: Sample | bytes) -> None:
    path = folder / "hosts" / node / f"attempt_{attempt}" / "samples.jsonl"
    path.parent.mkdir(parents=True)
    lines = [each if isinstance(each, bytes) else each.to_line().encode() for each in samples]
    path.write_bytes(b"".join(lines))


def merged(folder: Path) -> list[Sample]:
    return [*map(parse_sample, (folder / "samples.jsonl").read_bytes().splitlines())]


def test_nodes_and_attempts_are_merged_by_time(tmp_path: Path) -> None:
    """With all that is known of each."""
    gpu = GpuSample(0, "H100", 99, throttled=("power",))
    a, b, c = Sample("a", 0, 10.0, gpus=(gpu,)), Sample("b", 0, 11.0), Sample("a", 1, 20.0)
    put(tmp_path, "b", 0, b)
    put(tmp_path, "a", 1, c)
    put(tmp_path, "a", 0, a)

    merge(tmp_path)

    assert merged(tmp_path) == [a, b, c]
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["samples.jsonl"]


def test_lies_are_left_out(tmp_path: Path) -> None:
    """Samples of another node or attempt, of another version, torn, or impossible ones."""
    good, other = Sample("a", 0, 10.0), Sample("b", 0, 11.0)
    lies = [b'{"v":2,"node":"a","attempt":0,"wall":1}\n', b"\xff\n", b"[]\n", b"{}\n"]
    lies += [b'{"v":1,"node":"a","attempt":0,"wall":1,"cpu":1e9}\n', b'{"v":1,"x":"' + b"y" * 70000]
    put(tmp_path, "a", 0, other, Sample("a", 3, 1.0), good, *lies, b'{"v":1,"node":"a"')
    put(tmp_path, "-x", 0, Sample("a", 0, 1.0))

    merge(tmp_path)

    assert merged(tmp_path) == [good]
