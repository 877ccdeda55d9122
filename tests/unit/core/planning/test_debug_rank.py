"""The way to a debugged rank."""

from runner.core.planning.notes import ssh_forward
from runner.core.spec import Node, Ssh


def test_the_ssh_line_logs_in_as_the_launch_does() -> None:
    """With what the cluster's YAML says; a setting of the node wins."""
    node = Node("a", "gpu1", user="ada", port=2222)
    ssh = Ssh(user="bob", key="~/k y", config="/c", jump=("b1", "x@b2:23"), known_hosts="/k")
    assert ssh_forward(ssh, node, 5678) == (
        """ssh -N -L 5678:127.0.0.1:5678 -F /c -i "$HOME"/'k y' -o UserKnownHostsFile=/k"""
        " -J b1,x@b2:23 -l ada -p 2222 gpu1"
    )
    assert ssh_forward(Ssh(), Node("a", "gpu1"), 1) == "ssh -N -L 1:127.0.0.1:1 gpu1"
    assert ssh_forward(Ssh(port=22), None, 1) == "ssh -N -L 1:127.0.0.1:1 -p 22 HOST"
