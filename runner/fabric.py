"""Fabric group of a cluster's hosts, for tasks of one's own in a fabfile.

Its connections log in as a launch does: with the cluster's user, keys, jump hosts and deadlines,
and only to hosts whose key is known. The rest is Fabric's: `run`, `sudo`, `put`, `get`.
"""

from __future__ import annotations

import functools
from typing import Any

import fabric
from fabric.exceptions import GroupException
from invoke.exceptions import Exit, UnexpectedExit

from runner.core.errors import ConfigError, NotReady, Problem, RunnerError, fold_names
from runner.transport.fabric import HostConnection
from runner.transport.logins import SshTransport
from runner.ui.output import note
from runner.ui.problems import render_problems
from runner.verbs.shared.selection import Selection


class NodeConnection(HostConnection):
    """A connection whose failure to log in `fab` prints without a traceback."""

    def open(self) -> None:
        """Log in if that is not done; raise Exit."""
        try:
            super().open()
        except RunnerError as error:
            raise _exit(error) from error


class GroupFailure(GroupException, Exit):  # type: ignore[misc]  # fabric has no types
    """Some hosts failed: `result` has the outcome on every host, the message the failures.

    Where a task lets it pass, `fab` prints the message without a traceback and exits.
    """

    def __init__(self, result: Any) -> None:
        GroupException.__init__(self, result)
        problems: list[Problem] = []
        for connection, error in result.failed.items():
            if isinstance(error.__cause__, RunnerError):
                problems += error.__cause__.problems
            elif isinstance(error, UnexpectedExit):
                message = f"the command ended with exit code {error.result.exited}"
                problems.append(Problem(connection.node, message, error.result.stderr.strip()))
            else:
                problems.append(Problem(connection.node, f"{type(error).__name__}: {error}"))
        is_unready = any(isinstance(error, Exit) for error in result.failed.values())
        Exit.__init__(self, render_problems(problems), NotReady.exit_code if is_unready else 1)


class ClusterGroup(fabric.ThreadingGroup):  # type: ignore[misc]  # fabric has no types
    """A Fabric group that works on all of its hosts at once."""

    def _do(self, method: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return super()._do(method, *args, **kwargs)
        except GroupException as error:
            raise GroupFailure(error.result) from None


def group(cluster: str, *overrides: str) -> ClusterGroup:
    """Return the hosts of a cluster as a Fabric group, in rank order.

    Args:
        cluster: Its name, as in `--cluster`.
        overrides: KEY=VALUE, as in a launch: "cluster.only=[gpu1]".

    Raises:
        Exit: The configuration is wrong, or a node is reached without ssh.
    """
    try:
        spec = Selection((f"cluster={cluster}", *overrides)).contact().spec
        if local := [node.name for node in spec.nodes if node.transport == "local"]:
            message = f"{fold_names(local)} is this machine, which is reached without ssh"
            raise ConfigError([Problem(f"cluster={cluster}", message, "use `run` of Invoke there")])
        ssh = spec.cluster.ssh
        transport = SshTransport(ssh, functools.partial(HostConnection, ssh, note))
        make = functools.partial(NodeConnection, ssh, note)
        hosts = ClusterGroup()
        hosts.extend(transport.login(node, make) for node in spec.nodes)
    except RunnerError as error:
        raise _exit(error) from error
    return hosts


def _exit(error: RunnerError) -> Exit:
    return Exit(render_problems(error.problems), error.exit_code)
