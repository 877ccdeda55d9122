"""Known failures of libraries as data: of torch, CUDA, NCCL and what programs use beside them.

They are searched for before the general ones, and match no text of those.
"""

from __future__ import annotations

from typing import Tuple

from runner.core.outcome.failure_patterns import FailurePattern

LIBRARY_FAILURES: Tuple[FailurePattern, ...] = (
    FailurePattern(
        "ddp_unused",
        r"Expected to have finished reduction in the prior iteration",
        "some parameters had no part in the loss, and DDP waits for a gradient of each",
        "freeze them before DDP wraps the model, or DDP(…, find_unused_parameters=True)",
    ),
    FailurePattern(
        "ddp_twice",
        r"Expected to mark a variable ready only once",
        "a parameter got two gradients in one backward pass, and DDP takes one",
        "checkpoint(…, use_reentrant=False), or DDP(…, static_graph=True)",
    ),
    FailurePattern(
        "collective_device",
        r"No backend type associated with device type (?P<device>\w+)|must be CUDA and dense",
        "a collective was given a tensor on a device{device: (?)} that its backend does not serve",
        "move it to the rank's device; init_process_group('cpu:gloo,cuda:nccl') serves both",
    ),
    FailurePattern(
        "collectives_differ",
        r"Detected mismatch between collectives on ranks|op\.preamble\.length <= op\.nbytes",
        "ranks were in different collectives, or in the same one with other sizes",
        "look for one below `if rank == 0`, or in a loop that is longer on some ranks",
    ),
    FailurePattern(
        "no_process_group",
        r"[Dd]efault process group has not been initialized",
        "torch.distributed was used before init_process_group, or after destroy_process_group",
        "call it first, in each process; code that may run without asks dist.is_initialized()",
    ),
    FailurePattern(
        "process_group_twice",
        r"trying to initialize the default process group twice",
        "init_process_group was called again, mostly beside a library that had called it",
        "leave it to one: Accelerate, Lightning, DeepSpeed and the Trainer call it themselves",
    ),
    FailurePattern(
        "gpu_shared",
        r"Duplicate GPU detected ?: rank (?P<one>\d+) and rank (?P<other>\d+)",
        "ranks {one} and {other} chose the same GPU",
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before init_process_group",
    ),
    FailurePattern(
        "nccl_shared_memory",
        r"Error while (?:creating|attaching to) shared memory segment|failed to extend /dev/shm/",
        "NCCL could not get the shared memory (/dev/shm) that ranks of one host talk over",
        "make it larger there (mount -o remount,size=16G /dev/shm; container.shm_size=16g)",
    ),
    FailurePattern(
        "gpu_assert",
        r"CUDA error: device-side assert triggered",
        "an index was out of range on the GPU: mostly a label or token the model has no place for",
        "task.env.CUDA_LAUNCH_BLOCKING=1 has the traceback end at the call that did it",
    ),
    FailurePattern(
        "gpu_address",
        r"CUDA error: (?:an illegal memory access was encountered|misaligned address)",
        "code on the GPU used memory that is not its own: mostly a compiled extension",
        "task.env.CUDA_LAUNCH_BLOCKING=1 shows the call; `{program} check` finds faulty GPUs",
    ),
    FailurePattern(
        "gpu_build",
        r"no kernel image is available for execution on the device",
        "torch or an extension was not built for that model of GPU",
        "install a build that was (torch.cuda.get_arch_list()), or build the extension again there",
    ),
    FailurePattern(
        "driver_old",
        r"CUDA driver version is insufficient|The NVIDIA driver on your system is too old",
        "the driver is too old for the CUDA that torch was built with",
        "install a newer driver, or a torch for an older CUDA: `{program} check` names both",
    ),
    FailurePattern(
        "gpu_library",
        r"(?P<status>(?:CUBLAS|CUDNN)_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED))",
        "a library of CUDA could not start ({status}): mostly the GPU's memory is full",
        "use a smaller batch; `{program} ps` names other processes on it",
    ),
    FailurePattern(
        "devices_mixed",
        r"Expected all tensors to be on the same device|"
        r"Input type \([\w.:]+\) and (?:weight|bias) type \([\w.:]+\) should be the same",
        "the model and its input are on different devices, or of different types",
        "model.to(device) and batch.to(device), with device = f\"cuda:{os.environ['LOCAL_RANK']}\"",
    ),
    FailurePattern(
        "cuda_forked",
        r"Cannot re-initialize CUDA in forked subprocess",
        "a process used CUDA that was forked from one that had used it",
        "keep a dataset's tensors on the CPU, or DataLoader(…, multiprocessing_context='spawn')",
    ),
    FailurePattern(
        "loader_died",
        r"DataLoader worker \(pid \d+\) (?:is killed by signal: (?P<signal>Killed|Segmentation "
        r"fault|Aborted|Illegal instruction)|exited unexpectedly with exit code (?P<code>\d+))",
        "a data loader's worker died{signal: (?)}{code: with exit code ?}",
        "Killed: memory ran out, use fewer (num_workers); else num_workers=0 shows the error",
    ),
    FailurePattern(
        "library_missing",
        r"(?:Error|loading shared libraries): (?P<library>lib[\w.+-]+): cannot open shared object",
        "{library} is not on that host, or in no folder that is searched",
        "`module load` it in cluster.setup, install it, or cluster.env.LD_LIBRARY_PATH=FOLDER",
    ),
    FailurePattern(
        "library_mismatch",
        r"^(?:\w+Error: |\S+: symbol lookup error: )?(?:[^\s:]*/)?(?P<file>[^/\s:]+): "
        r"undefined symbol",
        "{file} was built for another version of a library, such as torch, than is found",
        "install its package again, for the torch that is there; where the file is CUDA's "
        "(libcu…, libnv…), LD_LIBRARY_PATH leads to another CUDA than torch's own",
    ),
    FailurePattern(
        "numpy_versions",
        r"compiled using NumPy 1\.x cannot be run|numpy\.dtype size changed|"
        r"RuntimeError: Numpy is not available",
        "a package there was built for another version of NumPy",
        "install a newer one of the package, or numpy<2 beside it",
    ),
    FailurePattern(
        "build_tools",
        r"(?P<what>CUDA_HOME) (?:environment variable is not set|does not exist)|"
        r"(?P<compiler>Failed to find C compiler)|fatal error: (?P<header>Python\.h)",
        "a package compiles code there, and lacks{what: a CUDA toolkit (?)}{compiler: a compiler}"
        "{header: the headers of Python (?)}",
        "install it there (gcc, python3-dev, CUDA), or `module load` it in cluster.setup",
    ),
    FailurePattern(
        "weights_prefix",
        r'key\(s\) in state_dict: "(?P<prefix>module|_orig_mod)\.',
        "either the checkpoint or the model is that of a wrapper (DDP, torch.compile): {prefix}",
        "save and load the model in it (model.{prefix}), or take {prefix}. off the names",
    ),
    FailurePattern(
        "weights_differ",
        r"Error\(s\) in loading state_dict for (?P<model>\w+)",
        "the checkpoint is not of the {model} that was built",
        "build it with the arguments it was trained with; strict=False passes over missing names",
    ),
    FailurePattern(
        "weights_damaged",
        r"PytorchStreamReader failed (?:reading zip archive|locating file)|"
        r"SafetensorError: Error while deserializing header|"
        r"UnpicklingError: (?:invalid load key|pickle data was truncated)|"
        r"EOFError: Ran out of input|WeightsUnpickler error: (?:Unsupported operand \d+)?$",
        "a file of weights is cut off, empty or not one (such as a pointer of git-lfs)",
        "fetch it again, or load the one before; have rank 0 alone save, and os.replace() it",
    ),
    FailurePattern(
        "weights_pickled",
        r"Weights only load failed\. (?:This file can still be loaded|Re-running)",
        "the file holds objects other than tensors, which torch.load refuses since torch 2.6",
        "if you trust it: weights_only=False, or task.env.TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1",
    ),
    FailurePattern(
        "arguments_missing",
        r"error: the following arguments are required: (?P<names>(?!.*--local[-_]rank).+)",
        "the program requires {names}",
        "task.args.NAME=VALUE passes --NAME VALUE; words after -- are passed as they are",
    ),
    FailurePattern(
        "no_input",
        r"^EOFError: EOF when reading a line",
        "the program asked for input, and ranks have no terminal",
        "give it the answer as an argument or a variable (task.args, task.env)",
    ),
    FailurePattern(
        "hub_login",
        r"GatedRepoError|trying to access a gated repo|RepositoryNotFoundError: 401",
        "Hugging Face gives that model or data set only to users that it knows",
        "accept its terms on its page; cluster.secrets=[HF_TOKEN] hands your token to the ranks",
    ),
    FailurePattern(
        "offline",
        r"couldn't connect to '(?P<server>https?://[^']+)'|LocalEntryNotFoundError|"
        r"^[\w.]+: .*HTTPS?ConnectionPool\(host='(?P<host>[^']+)'.*Max retries exceeded|"
        r"<urlopen error (?:\[Errno (?:-\d|1(?!04)\d\d)\]|timed out)|"
        r"httpx\.Connect(?:Error|Timeout)",
        "that host cannot download{server: from ?}{host: from ?}",
        "many nodes have no way to the internet: fetch it before, to a folder that they see, and "
        "set HF_HUB_OFFLINE=1 for Hugging Face; a proxy is cluster.env.HTTPS_PROXY",
    ),
    FailurePattern(
        "wandb_login",
        r"api_key not configured \(no-tty\)|UsageError: No API key configured",
        "W&B wants its key, and ranks have no terminal to type it in",
        "cluster.secrets=[WANDB_API_KEY] hands on yours, or task.env.WANDB_MODE=offline",
    ),
)
