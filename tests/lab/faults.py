"""List of the faults under test: how each is caused, and what a person must read about it."""

from __future__ import annotations

import signal
import sys

from tests.lab.causing import (
    BREAK_DNS,
    DEAD_NEIGHBOUR,
    ETCD_PORT,
    FAULT_DIR,
    PORT,
    RESTORE_DNS,
    disk_full,
    endpoint_dropped,
    etcd_client_missing,
    etcd_without_v2,
    host_key_changed,
    kill_torchrun,
    misleading_name,
    on_host,
    on_other_host,
    port_taken,
    power_off,
    unplugged,
)
from tests.lab.fault_forms import (
    Fault,
    check_fault,
    hang_fault,
    program_args,
    rank_fault,
    refused_launch,
)
from tests.lab.launching import PLAIN_ENTRY

SOMEBODYS_ETCD = ("rendezvous=etcd", f"rendezvous.endpoint={{node4}}:{ETCD_PORT}")

EVERYDAY = (
    rank_fault(
        "a rank raises, and one that noticed it ends first",
        ("raise_slowly",),
        ("raised ValueError", "ValueError: lr must be positive"),
    ),
    rank_fault(
        "the memory of a GPU runs out",
        ("gpu_memory",),
        ("exited with 1", "the GPU's memory ran out: 2.00 GiB more were requested"),
        "gpu_memory",
    ),
    rank_fault(
        "NCCL gives up waiting",
        ("nccl_timeout",),
        ("was killed by SIGABRT", "a collective was not joined by all ranks in time"),
        "nccl_watchdog",
    ),
    rank_fault(
        "a module is missing on one host",
        ("module", "extra_ops"),
        (
            "exited with 1",
            "ModuleNotFoundError: No module named 'extra_ops'",
            "has no module extra_ops",
        ),
        "module_missing",
        on_other_host("touch extra_ops.py"),
    ),
    rank_fault(
        "data are missing on one host",
        ("data", f"{FAULT_DIR}/train.bin"),
        (f"there is no {FAULT_DIR}/train.bin on that host",),
        "file_missing",
        on_other_host("touch train.bin"),
    ),
    refused_launch(
        "the master's port is taken",
        (f"cluster.master_port={PORT}",),
        (f"node1: cluster.master_port: port {PORT}", "set cluster.master_port to another port"),
        port_taken,
    ),
    refused_launch(
        "the disk of one host is full",
        (),
        ("node2: cluster.workdir: ", "0 MiB free", "set cluster.workdir"),
        disk_full,
    ),
)
"""What `make test` tries."""

OTHERS = (
    rank_fault(
        "a rank raises from another exception",
        ("chain",),
        ("RuntimeError: the configuration has no lr", "KeyError: 'lr'"),
    ),
    rank_fault("a rank exits without a word", ("exit", "3"), ("exited with 3",)),
    Fault(
        "a rank writes its end into torchrun's error file alone",
        program_args("faulty.py", "1", "error_file"),
        ("first failure: rank 1 on node2", "exited with 1", "ValueError: told nobody but torchrun"),
    ),
    rank_fault(
        "compiled code crashes",
        ("segfault",),
        ("was killed by SIGSEGV", "why: compiled code crashed", "PYTHONFAULTHANDLER=1"),
        "sigsegv",
    ),
    rank_fault(
        "a bus error",
        ("signal", str(int(signal.SIGBUS))),
        ("was killed by SIGBUS", "a full /dev/shm"),
        "sigbus",
    ),
    rank_fault(
        "somebody kills a rank",
        ("signal", str(int(signal.SIGKILL))),
        ("was killed by SIGKILL", "a user or the kernel killed it"),
        "sigkill",
    ),
    rank_fault(
        "a rank meets a full disk", ("full",), ("a disk of that host is full",), "disk_full"
    ),
    rank_fault(
        "a script of long ago wants --local-rank",
        ("arguments",),
        ("exited with 2", "the program does not take --local-rank", "LOCAL_RANK"),
        "local_rank_unknown",
    ),
    hang_fault(
        "a rank never comes to a collective",
        "collective",
        ("rank 0 waits in all_reduce for rank 1 on node2, which is in load_batch",),
    ),
    hang_fault("a rank stops reading its data", "pipe", ("rank 1, innermost", "read_shard")),
    Fault(
        "a rank returns while the others go on",
        program_args("hanging.py", "leave", "1"),
        ("rank 1 on node2 had exited with 0 before", "take part in every collective"),
        cause="peer_left",
    ),
    Fault(
        "a host loses its power",
        (*program_args("faulty.py", "9", "none"), PLAIN_ENTRY),
        ("first failure: node2", "node2: could not verify that all processes ended"),
        code=4,
        during=power_off,
    ),
    Fault(
        "somebody kills torchrun",
        program_args("faulty.py", "9", "none"),
        ("first failure: ", "node2", "SIGKILL"),
        cause="sigkill",
        during=kill_torchrun,
    ),
    refused_launch(
        "an interpreter is missing on one host",
        (f"cluster.python={FAULT_DIR}/python", f"cluster.host_python={sys.executable}"),
        (f"node2: {FAULT_DIR}/python is not there", "set cluster.python"),
        on_other_host(
            f"printf '#!/bin/sh\\nexec {sys.executable} \"$@\"\\n' >python; chmod +x python"
        ),
    ),
    refused_launch(
        "another torch on one host",
        (f"cluster.setup=['export PYTHONPATH={FAULT_DIR}']"),
        ("node2: torch 2.1.0, most have 2.", "pip install torch==2."),
        on_host(
            f"mkdir -p {FAULT_DIR}/torch; cd {FAULT_DIR}/torch; touch __init__.py; "
            "echo \"__version__ = '2.1.0'\" >version.py",
            f"rm -rf {FAULT_DIR}",
        ),
    ),
    refused_launch(
        "the setup fails on one host",
        (f"cluster.setup=['ls {FAULT_DIR}/env']",),
        ("node2: cluster.setup ended with 2", f"{FAULT_DIR}/env"),
        on_other_host("touch env"),
    ),
    refused_launch(
        "nothing can be written on one host",
        (f"cluster.workdir={FAULT_DIR}",),
        (f"node2: cluster.workdir: {FAULT_DIR} is a file, not a folder", "set cluster.workdir"),
        on_host(f"touch {FAULT_DIR}", f"rm -rf {FAULT_DIR}"),
    ),
    refused_launch(
        "the project is not on one host",
        (f"cluster.project={FAULT_DIR}", "task.script=train.py"),
        (f"node2: cluster.project: there is no folder {FAULT_DIR}",),
        on_other_host("touch train.py"),
    ),
    refused_launch("a host does not answer", (), ("node2: ", "10 s"), unplugged),
    refused_launch(
        "a host refuses the connection",
        ("cluster.nodes.node2.port=23",),
        ("node2: ", "port 23", "refused"),
    ),
    refused_launch(
        "the key of a host has changed",
        (),
        ("node2: ", "SHA256:", "ssh-keygen -R"),
        host_key_changed,
    ),
    refused_launch(
        "fewer GPUs than the YAML says",
        ("cluster.nodes.node2.gpus=2",),
        ("node2: cluster.nodes.node2.gpus: asked for 2, the host has none", "legal here: 0"),
    ),
    refused_launch(
        "an endpoint where nobody listens",
        SOMEBODYS_ETCD,
        (f":{ETCD_PORT} cannot be used from this host: Connection refused", "client URL"),
    ),
    refused_launch(
        "an etcd at the endpoint that offers no v2 API",
        ("rendezvous=etcd-v2", SOMEBODYS_ETCD[1]),
        ("rendezvous.endpoint: the etcd 3.4", "offers no v2 API", "start it with --enable-v2"),
        etcd_without_v2,
    ),
    refused_launch(
        "python-etcd is missing on one host",
        SOMEBODYS_ETCD,
        ("node2: no python-etcd in", "-m pip install python-etcd"),
        etcd_client_missing,
    ),
    check_fault(
        "an endpoint that drops what one host sends",
        (*SOMEBODYS_ETCD, "--skip", "pairs"),
        ("node2", "cannot be used from this host: no answer within 5 s"),
        endpoint_dropped,
    ),
    check_fault(
        "a firewall between one pair of hosts",
        (),
        ("node1 and node2 cannot reach each other: timed out",),
        on_host(
            f"ip neigh replace {{node2}} {DEAD_NEIGHBOUR}", "ip neigh del {node2} dev eth0", "node1"
        ),
    ),
    check_fault(
        "the master's port behind a firewall",
        (f"cluster.master_port={PORT}",),
        (f"cluster.master_port: no node reaches its port {PORT}", "while other ports are open"),
        on_host(
            f"ip rule add pref 5 ipproto tcp sport {PORT} blackhole",
            f"ip rule del pref 5 ipproto tcp sport {PORT} blackhole",
            "node1",
        ),
    ),
    check_fault(
        "a resolver that does not answer",
        (),
        ("node2", "no answer within 5 s when it looks up the name", "lines for /etc/hosts"),
        on_host(BREAK_DNS, RESTORE_DNS),
        code=0,
    ),
    check_fault(
        "a name that leads to loopback",
        ("cluster.nodes.node1.addr=master.lab",),
        ("master.lab leads to 127.0.1.1 there, that is, to itself and not to node1",),
        misleading_name,
    ),
    check_fault(
        "unlike MTUs",
        (),
        ("node2", "eth0 has MTU 1400"),
        on_host("ip link set dev eth0 mtu 1400", "ip link set dev eth0 mtu 1500"),
        code=0,
    ),
    check_fault(
        "a tiny shared memory",
        (),
        ("node2", "shared memory (/dev/shm) has 1 MiB free", "remount,size=16G"),
        on_host("mount -t tmpfs -o size=1M tmpfs /dev/shm", "umount /dev/shm"),
        code=0,
    ),
    check_fault(
        "a full folder for temporary files",
        ("cluster.setup=['export TMPDIR=/mnt']",),
        ("node2", "/mnt has 0 MiB free for temporary files", "task.env.TMPDIR"),
        on_host(
            "mount -t tmpfs -o size=16k,mode=1777 tmpfs /mnt; cat /dev/zero > /mnt/full || true",
            "umount /mnt",
        ),
        code=0,
    ),
)
"""What only `make test-all` tries."""
