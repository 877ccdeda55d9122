"""Bootstrap of the agent: the command that starts it, and what that reads first."""

from __future__ import annotations

from collections.abc import Sequence

from runner.control.rpc.host_code import boot_line
from runner.core import shell
from runner.core.errors import Problem
from runner.core.spec import Node, Spec
from runner.core.wire.codec import PROTOCOL, STAYS
from runner.core.wire.timing import SETUP_TIMEOUT_S

BOOT_TIMEOUT_S = 20.0
"""How long a host may take from login to our code running (Python may be on slow NFS)."""

_LOADER = 'exec(open(0,"rb",0,closefd=False).readline())'
"""All that `ps` shows of our code: the rest arrives on standard input."""

SHELL_STARTED = b"runner-boot: shell\n"
"""The first that the host's `/bin/sh` says: what came before it is of the login."""

GATEWAY_HINT = (
    "a gateway that wants a terminal, or an account without a shell? name the machine behind it,"
    " and the gateway in cluster.ssh.jump"
)

_IS_NEW_ENOUGH = "import sys; sys.exit(sys.version_info < (3, 8))"

_WATCH_SETUP = (  # in one line, for csh
    'trap "" PIPE; while sleep 1 >/dev/null && kill -0 $$; do '
    'printf "\\0" || kill -KILL 0; '
    "[ $SECONDS -lt {limit_s:.0f} ] || {{ echo runner-boot: setup-timeout; kill -KILL 0; }}; done"
)
"""Ends the process group of the setup at boot: at its limit, or when the channel is closed.

A NUL byte each second is how it notices that, since standard input has unread data; the controller
leaves them out.
"""


def boot_input(setup: Sequence[str]) -> bytes:
    return _setup_text(setup) + boot_line()


def boot_limit_s(spec: Spec) -> float:
    """Return how long a host may take from login to our code running, with the setup it needs."""
    has_setup = spec.cluster.setup or any(node.setup for node in spec.nodes)
    return BOOT_TIMEOUT_S + (SETUP_TIMEOUT_S if has_setup else 0.0)


def boot_command(spec: Spec, node: Node) -> list[str]:
    """Return the words that start the agent on a channel.

    The login shell may be fish or csh: it only has to start `/bin/sh`. The last words are
    for people who read `ps`. Where the interpreter is not there, or is too old, the lines of
    `cluster.setup` run first: they may bring it. They come on standard input, which `ps` does
    not show.
    """
    python = shell.path(spec.cluster.host_python)
    ps_words = shell.line([spec.run_id, node.name])
    stays = f" {STAYS}" if node.transport == "srun" else ""
    start = (
        f"command -v {python} >/dev/null 2>&1 || {{ echo runner-boot: no-python; exit 127; }}; "
        f"exec {python} -I -S -X utf8 -c {shell.quote(_LOADER)} "
        f"runner {ps_words} v{PROTOCOL}{stays}"
    )
    setup = spec.setup_of(node)
    if not setup:
        return ["/bin/sh", "-c", f"echo runner-boot: shell; {start}"]
    project = "" if spec.deploy.enabled else spec.cluster.project
    folder = f"cd {shell.path(project)} 2>/dev/null; " if project else ""
    watch = _WATCH_SETUP.format(limit_s=SETUP_TIMEOUT_S)
    # Neither a job of this shell nor a holder of its descriptors: nobody waits for it.
    with_setup = (
        f"exec 3>&1; __runner_watch=$({{ {watch}; }} 2>/dev/null >&3 3>&- & echo $!); exec 3>&-; "
        'trap "builtin kill $__runner_watch" EXIT; '
        f'{folder}{{ eval "$__runner_setup"; }} </dev/null 2>&1; '
        "trap - EXIT; builtin kill $__runner_watch; unset __runner_setup __runner_watch; "
        f"cd; {start}"
    )
    script = (  # dd reads byte by byte, as it is told; some `head` would take of the code as well
        f"lines=$(dd bs=1 count={len(_setup_text(setup))} 2>/dev/null); "
        f"{python} -c {shell.quote(_IS_NEW_ENOUGH)} </dev/null >/dev/null 2>&1 || "
        "! command -v bash >/dev/null 2>&1 || "
        f"__runner_setup=$lines exec bash --norc --noprofile -c {shell.quote(with_setup)}; {start}"
    )
    return ["/bin/sh", "-c", f"echo runner-boot: shell; {script}"]


def _setup_text(setup: Sequence[str]) -> bytes:
    return "".join(f"{line}\n" for line in setup).encode()


def boot_problem(
    spec: Spec, node: str, banner: bytes, reason: str, *, has_shell: bool = True
) -> Problem:
    """Explain why the agent did not start on a node, from what it printed in place of frames."""
    text = banner.decode(errors="replace").strip()
    if not has_shell and text:
        message = f"it lets us in, and starts no program: {reason}"
        return Problem(node, message, f"{text[-500:]}\n{GATEWAY_HINT}")
    if "runner-boot: no-python" in text:
        where = "" if "/" in spec.cluster.host_python else " on its PATH"
        where += ", also after the lines of cluster.setup" if spec.cluster.setup else ""
        is_same = spec.cluster.host_python == spec.cluster.python
        key = "cluster.python" if is_same else "cluster.host_python"
        hint = f"set {key} to a Python 3.8 or newer there\nwhat sets it: "
        hint += f"{shell.this_program()} explain {key} {shell.cluster_flag(spec.cluster.name)}"
        message = f"there is no {spec.cluster.host_python}{where}"
        return Problem(node, message, f"{_output_of_setup(text)}{hint}")
    if "runner-boot: setup-timeout" in text:
        message = f"the lines of cluster.setup did not end within {SETUP_TIMEOUT_S:.0f} s there"
        hint = "what hangs in them? they ran because the agent needs the Python that they bring: "
        hint += "cluster.host_python can name another one"
        return Problem(node, message, f"{_output_of_setup(text)}{hint}")
    if "runner-boot: python-too-old" in text or "unknown option -I" in text.lower():
        version = text.rpartition("too-old ")[2].split()[0] if "too-old " in text else "2"
        message = (
            f"{spec.cluster.host_python} there is Python {version}; the agent needs 3.8 or newer"
        )
        hint = "set cluster.host_python to a newer one (cluster.python may stay)"
        return Problem(node, message, hint)
    message = f"the agent did not start there: {reason}"
    return Problem(node, message, text[-500:] or f"try by hand: {spec.cluster.host_python} -V")


def _output_of_setup(text: str) -> str:
    """Return the last of what the setup printed, as lines before a hint."""
    output = text.partition("runner-boot:")[0].strip()[-500:]
    return f"{output}\n" if output else ""
