"""List of the faults under test: how each is caused, and what a person must read about it.

`docs/faults.md` is made of this list, by `pytest tests/golden/test_faults_page.py --update-golden`.
"""

from __future__ import annotations

import signal
import sys

from tests.lab.causing import (
    BREAK_DNS,
    DEAD_NEIGHBOUR,
    ETCD_PORT,
    FAKE_NEW_ETCD,
    FAULT_DIR,
    HIDE_ETCD,
    PORT,
    RESTORE_DNS,
    RESTORE_ETCD,
    SETUP_PYTHONPATH,
    disk_full,
    endpoint_dropped,
    etcd_client_missing,
    etcd_without_v2,
    host_key_changed,
    kill_etcd,
    kill_torchrun,
    misleading_name,
    on_hosts,
    on_other_hosts,
    package_missing,
    port_taken,
    power_off,
    release_changed,
    short_timeouts,
    unplugged,
)
from tests.lab.fault_forms import (
    THREE,
    Fault,
    check_fault,
    hang_fault,
    program_args,
    rank_fault,
    refused_launch,
)
from tests.lab.launching import PLAIN_ENTRY

SERVED_ETCD = ("rendezvous=etcd-v2", "rendezvous.serve=node3")


FAULTS = (
    rank_fault(
        "a rank raises",
        ("raise",),
        ("exited with 1", "ValueError: lr must be positive"),
    ),
    rank_fault(
        "a rank raises from another exception",
        ("chain",),
        ("RuntimeError: the configuration has no lr", "KeyError: 'lr'"),
        all_only=True,
    ),
    rank_fault(
        "a rank raises, and one that noticed it ends first",
        ("raise_slowly",),
        ("raised ValueError", "ValueError: lr must be positive"),
    ),
    rank_fault("a rank exits without a word", ("exit", "3"), ("exited with 3",), all_only=True),
    Fault(
        "a rank writes its end into torchrun's error file alone",
        (*program_args("faulty.py", "2", "error_file"), THREE),
        ("first failure: rank 2 on node3", "exited with 1", "ValueError: told nobody but torchrun"),
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
        all_only=True,
    ),
    rank_fault(
        "somebody kills a rank",
        ("signal", str(int(signal.SIGKILL))),
        ("was killed by SIGKILL", "a user or the kernel killed it"),
        "sigkill",
    ),
    Fault(
        "a module is missing on one host",
        (*program_args("faulty.py", "2", "module", "extra_ops"), THREE, PLAIN_ENTRY),
        (
            "first failure: rank 2 on node3 exited with 1",
            "ModuleNotFoundError: No module named 'extra_ops'",
            "has no module extra_ops",
        ),
        cause="module_missing",
        setup=on_other_hosts("touch extra_ops.py"),
    ),
    Fault(
        "data are missing on one host",
        (*program_args("faulty.py", "2", "data", f"{FAULT_DIR}/train.bin"), THREE, PLAIN_ENTRY),
        ("first failure: rank 2 on node3", f"there is no {FAULT_DIR}/train.bin on that host"),
        cause="file_missing",
        setup=on_other_hosts("touch train.bin"),
    ),
    rank_fault(
        "a rank meets a full disk", ("full",), ("a disk of that host is full",), "disk_full"
    ),
    rank_fault(
        "a script of long ago wants --local-rank",
        ("arguments",),
        ("exited with 2", "the program does not take --local-rank", "LOCAL_RANK"),
        "local_rank_unknown",
        all_only=True,
    ),
    hang_fault(
        "a rank hangs before it joins",
        "before",
        ("ranks 0-1 wait in init_process_group for rank 2 on node3, which is in load_batch",),
        all_only=True,
    ),
    hang_fault(
        "a rank never comes to a collective",
        "collective",
        ("ranks 0-1 wait in all_reduce for rank 2 on node3, which is in load_batch",),
    ),
    hang_fault(
        "a rank stops reading its data",
        "pipe",
        ("rank 2, innermost call first", "read_shard"),
        all_only=True,
    ),
    Fault(
        "a rank returns while the others go on",
        (*program_args("hanging.py", "leave", "2"), THREE),
        ("rank 2 on node3 had exited with 0 before", "take part in every collective"),
        timeout_s=40.0,
        cause="peer_left",
    ),
    Fault(
        "a host loses its power",
        (*program_args("faulty.py", "9", "none"), THREE, PLAIN_ENTRY, "lost_s=3"),
        ("first failure: node3", "node3: could not verify that all processes ended"),
        code=4,
        timeout_s=30.0,
        setup=short_timeouts,
        during=power_off,
    ),
    Fault(
        "somebody kills torchrun",
        (*program_args("faulty.py", "9", "none"), THREE),
        ("first failure: ", "node3", "SIGKILL"),
        cause="sigkill",
        during=kill_torchrun,
    ),
    refused_launch(
        "the master's port is taken",
        (f"cluster.master_port={PORT}",),
        (f"node1: cluster.master_port: port {PORT}", "set cluster.master_port to another port"),
        port_taken,
    ),
    refused_launch(
        "an interpreter is missing on one host",
        (f"cluster.python={FAULT_DIR}/python", f"cluster.host_python={sys.executable}"),
        (f"node3: {FAULT_DIR}/python is not there", "set cluster.python"),
        on_other_hosts(
            f"printf '#!/bin/sh\\nexec {sys.executable} \"$@\"\\n' >python; chmod +x python"
        ),
    ),
    refused_launch(
        "another torch on one host",
        (SETUP_PYTHONPATH,),
        ("node3: torch 2.1.0, most have 2.", "pip install torch==2."),
        on_hosts(
            f"mkdir -p {FAULT_DIR}/torch; cd {FAULT_DIR}/torch; touch __init__.py; "
            "echo \"__version__ = '2.1.0'\" >version.py",
            f"rm -rf {FAULT_DIR}",
        ),
        all_only=True,
    ),
    refused_launch(
        "a package that the project names is missing on one host",
        (SETUP_PYTHONPATH,),
        ("node3: some-data-kit is missing", "requirements.txt", "pip install some-data-kit==1.0"),
        package_missing,
        all_only=True,
    ),
    refused_launch(
        "the setup fails on one host",
        (f"cluster.setup=['ls {FAULT_DIR}/env']",),
        ("node3: cluster.setup ended with 2", f"{FAULT_DIR}/env"),
        on_other_hosts("touch env"),
    ),
    refused_launch(
        "the disk of one host is full",
        (),
        ("node3: cluster.workdir: ", "0 MiB free", "set cluster.workdir"),
        disk_full,
    ),
    refused_launch(
        "nothing can be written on one host",
        (f"cluster.workdir={FAULT_DIR}",),
        (f"node3: cluster.workdir: {FAULT_DIR} is a file, not a folder", "set cluster.workdir"),
        on_hosts(f"touch {FAULT_DIR}", f"rm -rf {FAULT_DIR}"),
    ),
    refused_launch(
        "the project is not on one host",
        (f"cluster.project={FAULT_DIR}", "task.script=train.py"),
        (f"node3: cluster.project: there is no folder {FAULT_DIR}",),
        on_other_hosts("touch train.py"),
    ),
    refused_launch(
        "a host does not answer",
        ("cluster.ssh.connect_timeout=2",),
        ("node3: ", "2 s"),
        unplugged,
        all_only=True,
    ),
    refused_launch(
        "a host refuses the connection",
        ("cluster.nodes.node3.port=23",),
        ("node3: ", "port 23", "refused"),
    ),
    refused_launch(
        "the key of a host has changed",
        (),
        ("node3: ", "SHA256:", "ssh-keygen -R"),
        host_key_changed,
    ),
    refused_launch(
        "fewer GPUs than the YAML says",
        ("cluster.nodes.node3.gpus=2",),
        ("node3: cluster.nodes.node3.gpus: asked for 2, the host has none", "legal here: 0"),
    ),
    Fault(
        "somebody kills the etcd of a run",
        (*program_args("faulty.py", "9", "none"), *SERVED_ETCD),
        ("first failure: node3: the etcd of the run was killed by SIGKILL",),
        during=kill_etcd,
        all_only=True,
    ),
    refused_launch(
        "no etcd on the node that is to run one",
        SERVED_ETCD,
        ("node3: rendezvous.serve: there is no etcd on its PATH", "package is etcd-server"),
        on_hosts(HIDE_ETCD, RESTORE_ETCD),
    ),
    refused_launch(
        "an etcd without the v2 API there",
        SERVED_ETCD,
        ("node3: rendezvous.serve: /usr/bin/etcd is etcd 3.6.1, which has no v2 API for torch",),
        on_hosts(FAKE_NEW_ETCD, RESTORE_ETCD),
    ),
    refused_launch(
        "an endpoint where nobody listens",
        ("rendezvous=etcd", f"rendezvous.endpoint={{node4}}:{ETCD_PORT}"),
        (f":{ETCD_PORT} cannot be used from this host: Connection refused", "client URL"),
    ),
    refused_launch(
        "an etcd at the endpoint that offers no v2 API",
        ("rendezvous=etcd-v2", f"rendezvous.endpoint={{node4}}:{ETCD_PORT}"),
        ("rendezvous.endpoint: the etcd 3.4", "offers no v2 API", "start it with --enable-v2"),
        etcd_without_v2,
    ),
    refused_launch(
        "python-etcd is missing on one host",
        ("rendezvous=etcd", f"rendezvous.endpoint={{node4}}:{ETCD_PORT}"),
        ("node3: no python-etcd in", "-m pip install python-etcd"),
        etcd_client_missing,
    ),
    check_fault(
        "an endpoint that drops what one host sends",
        ("rendezvous=etcd", f"rendezvous.endpoint={{node4}}:{ETCD_PORT}", "--skip", "pairs"),
        ("node3", "cannot be used from this host: no answer within 5 s"),
        endpoint_dropped,
    ),
    check_fault(
        "a firewall between one pair of hosts",
        (),
        ("node1 and node3 cannot reach each other: timed out", "both reach the others"),
        on_hosts(
            f"ip neigh replace {{node3}} {DEAD_NEIGHBOUR}", "ip neigh del {node3} dev eth0", "node1"
        ),
        all_only=True,
    ),
    check_fault(
        "the master's port behind a firewall",
        (f"cluster.master_port={PORT}",),
        (f"cluster.master_port: no node reaches its port {PORT}", "while other ports are open"),
        on_hosts(
            f"ip rule add pref 5 ipproto tcp sport {PORT} blackhole",
            f"ip rule del pref 5 ipproto tcp sport {PORT} blackhole",
            "node1",
        ),
        all_only=True,
    ),
    check_fault(
        "a resolver that does not answer",
        (),
        ("node3", "no answer within 5 s when it looks up the name", "lines for /etc/hosts"),
        on_hosts(BREAK_DNS, RESTORE_DNS),
        code=0,
        timeout_s=30.0,
        all_only=True,
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
        ("node3", "eth0 has MTU 1400, most have 1500"),
        on_hosts("ip link set dev eth0 mtu 1400", "ip link set dev eth0 mtu 1500"),
        code=0,
        all_only=True,
    ),
    check_fault(
        "a tiny shared memory",
        (),
        ("node3", "shared memory (/dev/shm) has 1 MiB free", "remount,size=16G"),
        on_hosts("mount -t tmpfs -o size=1M tmpfs /dev/shm", "umount /dev/shm"),
        code=0,
    ),
    check_fault(
        "a full folder for temporary files",
        ("cluster.setup=['export TMPDIR=/mnt']",),
        ("node3", "/mnt has 0 MiB free for temporary files", "task.env.TMPDIR"),
        on_hosts(
            "mount -t tmpfs -o size=16k,mode=1777 tmpfs /mnt; cat /dev/zero > /mnt/full || true",
            "umount /mnt",
        ),
        code=0,
    ),
    check_fault(
        "pushed code that somebody changed on one host",
        ("task.script=train.py",),
        ("node3", "has files that differ from what was pushed", "runner deploy"),
        release_changed,
        code=0,
        all_only=True,
    ),
)
