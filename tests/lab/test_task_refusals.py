"""What the shipped tasks refuse: a world that does not fit, a torch that lacks their pattern."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.lab.by_hand import program, python

pytestmark = pytest.mark.tasks


LACKS = "error: this torch, {torch}, "
NO_SUM = "distributed.fsdp.FSDPModule.set_force_sum_reduction_for_comms"
ONE_PROCESS = "error: this trains in one process and was started as 2; ddp.py uses all"
CASES = [
    ("collectives", 2, "", ["--max_bytes=1.5G"], "error: argument --max_bytes: '1.5G' is no size"),
    ("resnet18", 2, "", ["--sync_bn"], "error: --sync_bn needs nccl and a GPU for each rank; this"),
    ("resnet18", 1, "", ["--backend=mpi"], "error: --backend or DIST_BACKEND must be gloo or nccl"),
    ("resnet18", 1, "", ["--backend=nccl"], "error: nccl needs a GPU for local rank 0; this host"),
    ("resnet18", 1, "", ["--resume=odd.txt"], "error: --resume: odd.txt is no checkpoint of resn"),
    ("resnet18", 1, "", ["--checkpoint=/proc/x.pt"], "error: [Errno 2] No such file or directory:"),
    ("char_gpt", 2, "", ["--batch_size=7"], "error: --batch_size must divide by 2 ranks, --width "),
    ("char_gpt", 1, "", ["--data=torn.gz"], "error: --data torn.gz: Error -3 while decompressing"),
    ("single", 1, "", ["--lr=-1"], "error: --lr must be above 0, not -1.0"),
    ("single", 2, "", [], ONE_PROCESS),
    ("ddp", 3, "", ["--accumulate=5"], "error: --batch_size must be a multiple of 15, 3 ranks tim"),
    ("ddp", 1, "", ["--checkpoint=odd.txt"], "error: --checkpoint: odd.txt is no checkpoint of dd"),
    ("elastic", 1, "", ["--snapshot=odd.txt"], "error: --snapshot odd.txt is of no use here: Unpi"),
    ("rpc_parameter_server", 9, "", [], "error: --batch_size 420 must be a multiple of the 8 trai"),
    ("rpc_parameter_server", 2, "_C._rpc_init", [], LACKS + "was built without RPC"),
    ("rpc_pipeline", 9, "", [], "error: the 8 layers go to 2 to 8 ranks, not 9"),
    ("pipeline", 9, "", [], "error: the 8 layers go to 8 ranks or fewer, not 9"),
    ("pipeline", 2, "distributed.pipelining.PipelineStage", [], LACKS + "has no torch.distribu"),
    ("fsdp", 5, "", [], "error: --batch_size 96 must be a multiple of the 5 ranks"),
    ("fsdp", 2, NO_SUM, [], "error: torch {torch} averages wrongly over gloo: nccl or a newer o"),
    ("tensor_parallel", 3, "", ["--tensor_parallel=2"], "error: --tensor_parallel 2 must divide "),
    ("tensor_parallel", 2, "distributed.fsdp.fully_shard", [], LACKS + "has no torch.distribute"),
]
"""Task, world size, what torch lacks, flags, and the line."""


def test_what_does_not_fit_is_one_line_and_exit_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any rank ends alone, before it waits for another, and names what to change."""
    monkeypatch.chdir(tmp_path)
    Path("odd.txt").write_bytes(b"\xff" * 10_000)
    Path("torn.gz").write_bytes(gzip.compress(b"torn", mtime=0)[:10] + b"\xff" * 100)
    cases = [(str(program(task)), *case) for task, *case in CASES]
    done = python("-c", FORKS, json.dumps(cases))

    assert done.returncode == 0, done
    torch, *ended = json.loads(done.stdout)
    for (task, *case, line), (code, out, err) in zip(CASES, ended, strict=True):
        assert (code, out, err.count("\n")) == (2, "", 1), (task, case, err)
        assert err.startswith(f"{task}.py: {line.format(torch=torch)}"), (task, case, err)


FORKS = """
import functools, os, runpy, sys, tempfile, json
import torch.distributed.fsdp, torch.distributed.pipelining, torch.distributed.optim
ended = [torch.__version__]
for script, world_size, lacking, flags, _ in json.loads(sys.argv[1]):
    files = [tempfile.TemporaryFile("w+") for _ in range(2)]
    pid = os.fork()
    if not pid:
        os.dup2(files[0].fileno(), 1)
        os.dup2(files[1].fileno(), 2)
        os.environ.update(RANK=f"{world_size - 1}", WORLD_SIZE=f"{world_size}", LOCAL_RANK="0")
        if lacking:
            *where, name = lacking.split(".")
            delattr(functools.reduce(getattr, where, torch), name)
        sys.argv = [script, *flags]
        code = 0
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as end:
            code = end.code
        sys.stdout.flush()
        os._exit(code)  # to take all of torch apart costs half a second
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    ended.append([code, *(file.seek(0) or file.read() for file in files)])
print(json.dumps(ended))
"""
