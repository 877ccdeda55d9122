"""Known failures of the operating system: programs that are missing, disks, limits, connections."""

from __future__ import annotations

from typing import Tuple

from runner.core.outcome.failure_patterns import FailurePattern

SYSTEM_FAILURES: Tuple[FailurePattern, ...] = (
    FailurePattern(
        "windows_lines",
        r"^(?:\S*env: |(?:(?:ba|da|z|k)?sh: (?:line \d+: )?)?(?P<file>[^\s:]+): .*?)"
        r"(?:\S*\\r\W?: (?:command not found|not found|No such file|invalid option)|"
        r"bad interpreter: .*\\r|\S*\^M: bad interpreter|set: Illegal option -$)",
        "{file|the script} has Windows line ends (CR LF), and the CR is taken for a part of a name",
        "`sed -i 's/\\r$//' {file|FILE}` takes them out; `grep -rlI $'\\r' .` lists such files, "
        "and `git config core.autocrlf input` keeps them out",
    ),
    FailurePattern(
        "interpreter_missing",
        r"(?P<file>[^\s:]*/[^\s:]+): (?:bad interpreter: b'(?P<line>.*?)(?:\\n)?'|"
        r"cannot execute: required file not found|(?P<wanted>\S+): bad interpreter)",
        "the interpreter that the first line of {file} names is not on that host"
        "{line:: ?}{wanted:: ?}",
        "install it there, or name one that is there: #!/usr/bin/env python3; "
        "if the first line has Windows line ends: `sed -i 's/\\r$//' {file}`",
    ),
    FailurePattern(
        "program_missing",
        r"in _execute_child\n(?:.*\n){1,4}?FileNotFoundError: .*: '(?P<name>[^'/]+)'|"
        r"^\S+: (?:(?:line )?\d+: )?(?P<name1>[^\s/:]+): command not found$|"
        r"^\S+: \d+: (?P<name2>[^\s/:]+): not found$|command not found: (?P<name3>\S+)|"
        r"env: \W(?P<name4>[\w.+-]+)\W: No such file|"
        r"exited with 127\n(?P<name5>[^\s/:]+): No such file or directory",
        "that host has no program {name} on the PATH of the rank{path: (?)}",
        "{image:build it into the image, or }{bare:install it there, or add its folder in "
        "cluster.setup ('export PATH=/FOLDER:$PATH'), or }write its whole path; `{program} exec "
        "{cluster:? }-- command -v {name}` shows which hosts have it",
    ),
    FailurePattern(
        "not_executable",
        r"^(?P<file>\S*/\S+): (?:Permission denied|Exec format error)\Z|"
        r"exited with 126\n(?:.*\n)*?\S+: (?:(?:line )?\d+: )?(?P<file1>\S*/\S+): "
        r"(?:Permission denied|Exec format error|cannot execute)|"
        r"in _execute_child\n(?:.*\n){1,4}?(?:PermissionError: \[Errno 13\]|OSError: \[Errno 8\])"
        r" .*: '(?P<file2>[^']+)'",
        "{file} cannot be executed on that host",
        "`chmod +x {file}`, and a first line such as #!/usr/bin/env python3; a program in Python "
        "needs neither as task.script={file}",
    ),
    FailurePattern(
        "inotify",
        r"(?P<watches>inotify watch limit)|(?P<instances>inotify instance limit)",
        "the files that are watched there are more than the kernel allows: no disk is full",
        "have the program watch fewer folders, or set fs.inotify."
        "{watches:max_user_watches}{instances:max_user_instances} higher there (sysctl, as root)",
    ),
    FailurePattern(
        "shared_memory",
        r"[Bb]us error.*shared memory|insufficient shared memory|"
        r"unable to (?:open|mmap|allocate).*shared memory|/dev/shm.*[Nn]o space left|"
        r"file </torch_.*[Nn]o space left|_multiprocessing\.SemLock\((?:\n.*){1,3}\[Errno 28\]",
        "the shared memory (/dev/shm{shm:: ?}) is too small for what processes share, such as the "
        "batches of data loaders' workers",
        "{bare:make it larger there (mount -o remount,size=16G /dev/shm); }"
        "{image:set container.shm_size=16g; }or use fewer workers (num_workers)",
    ),
    FailurePattern(
        "disk_full",
        r"\[Errno 28\][^\n]*?(?:: '(?P<file>[^']+)')?$|"
        r"[Nn]o space left (?:on device|in (?P<full>/\S+))",
        "{full|a file system} is full there{file:: no space for ?}",
        "free some space there{left: (it has ?)}: `{program} clean` removes what old runs left; "
        "task.env.TMPDIR names another folder for temporary files, cluster.workdir for runs",
    ),
    FailurePattern(
        "quota",
        r"\[Errno 122\]|Disk quota exceeded",
        "the quota of that user is used up there, though the disk may have space",
        "`quota -s` there shows it: remove files, or write elsewhere (cluster.workdir, "
        "task.env.TMPDIR, and HF_HOME, TORCH_HOME for what is downloaded)",
    ),
    FailurePattern(
        "read_only",
        r"\[Errno 30\][^\n]*?: '(?P<file>[^']+)'|(?P<file1>\S+): Read-only file system",
        "{file} is on a file system that is mounted read-only there",
        "{image:what is to be written needs a mount without :ro (container.mounts); }{bare:a disk "
        "that was writable before has failed (see `dmesg` there); }or write elsewhere",
    ),
    FailurePattern(
        "access_denied",
        r"PermissionError: \[Errno 13\] Permission denied: '(?P<file>[^']+)'|"
        r"^\S+: (?:(?:line )?\d+: )?(?:[^:\n]* )?\W?(?P<file1>[\w./~+-]+)\W?: Permission denied$",
        "the rank{uid:, with uid ?,} may not use {file} there",
        "`namei -l {file}` there shows whose each folder is: change that, or use another path"
        "{image:; container.user is the user in the container}",
    ),
    FailurePattern(
        "open_files",
        r"\[Errno 24\]|Too many open files|received 0 items of ancdata",
        "the rank has more files open than it may{nofile: (?)}: data loaders need one for each "
        "tensor that their workers hand over",
        "{bare:raise nofile in /etc/security/limits.conf there; }{image:raise "
        "container.ulimits.nofile; }or have the program call "
        "torch.multiprocessing.set_sharing_strategy('file_system')",
    ),
    FailurePattern(
        "process_limit",
        r"can't start new thread|BlockingIOError: \[Errno 11\]|"
        r"(?:[Ff]ork|[Tt]hread).*Resource temporarily unavailable",
        "that user may have no more processes and threads there{nproc: (?)}",
        "{bare:raise nproc in /etc/security/limits.conf there, or TasksMax of systemd; }"
        "{image:raise --pids-limit in container.extra; }or use fewer (num_workers, "
        "OMP_NUM_THREADS)",
    ),
    FailurePattern(
        "memory_denied",
        r"\[Errno 12\]|Cannot allocate memory|^MemoryError\b",
        "that host had no memory left for what the program asked for",
        "use fewer or smaller batches, workers or ranks there; `free -h` and `ulimit -v` there "
        "show what there is; vm.overcommit_memory=2 refuses early",
    ),
    FailurePattern(
        "libc_old",
        r"version `(?P<version>(?:GLIBC|GLIBCXX|CXXABI)_[\d.]+)' not found"
        r"(?: \(required by (?P<file>[^)]+)\))?",
        "{file|a library} was built for a newer system: that host has no {version}",
        "install a build for that system there, or use a container with a newer one; of GLIBCXX, "
        "conda often has a newer one: task.env.LD_LIBRARY_PATH=FOLDER_OF_LIBSTDC++",
    ),
    FailurePattern(
        "pipe_closed",
        r"multiprocessing/(?:connection|managers)\.py\".*\n(?:[ \t].*\n)*"
        r"(?:EOFError|BrokenPipeError|ConnectionResetError)",
        "a process that this rank shares a pipe with has ended, such as a data loader's worker",
        "what it wrote before shows why; a worker that was killed often ran out of memory",
    ),
    FailurePattern(
        "server_closed",
        r"(?:ConnectionResetError|BrokenPipeError|ConnectionAbortedError)\b|"
        r"RemoteDisconnected|Connection aborted|ConnectionClosedError|ServerDisconnected|"
        r"Server disconnected|IncompleteRead|urlopen error \[Errno (?:32|104)\]",
        "a server, which the program itself talks to, closed the connection; no rank did",
        "try again later, or have the program retry; many ranks at once may be too much for that "
        "server: download on one rank, or before the run",
    ),
)
