"""Verbs, flags and keys that are gone, and what to use instead."""

VERBS = {
    "forward": "use `ssh -N -L 6006:127.0.0.1:6006 HOST`, here for port 6006",
    "note": "write what you have to say into a file in the run's folder",
    "plot": "use `compare`, `report`, or `export` and TensorBoard",
}
"""By the verb."""

FLAGS = {
    "--cfg": "`config` prints the configuration, `config KEY` a part of it",
    "--hydra-help": "Hydra's documentation has what can be set below `hydra`",
    "--info": "`explain KEY` says which file or word set a key",
    "--package": "`config KEY` prints a part of the configuration",
    "--resolve": "`config --resolve` prints values instead of ${...}",
    "--run": "a launch runs once without it",
    "-c": "`config` prints the configuration, `config KEY` a part of it",
    "-i": "`explain KEY` says which file or word set a key",
    "-r": "a launch runs once without it",
    "-sc": "use --shell-completion bash, zsh or fish",
    "-p": "`config KEY` prints a part of the configuration",
    "clean --images": "use `docker image prune --all` on the hosts",
    "logs --grep": "use `logs | grep -E PATTERN`, also with --follow",
    "logs --since": "use --tail, such as `logs --tail 100`",
    "report --cluster": "`pull --cluster NAME --run ID` brings the run here; then `report ID`",
    "report --port": "`report --watch 5` writes the page again every 5 s",
    "report --serve": "`report --watch 5` writes the page again every 5 s; `ps` lists runs",
}
"""By the flag of a launch, or by its verb and the flag, such as `report --serve`."""

KEYS = {
    "check": "use skip_checks, such as skip_checks=[gpus]",
    "cluster.deploy": "use cluster.project: null pushes the code; a path, such as `.`, does not",
    "container.build": "build the image, push it to a registry, and name it by container.image",
    "container.push_image": "use a registry, or `docker save IMAGE | ssh HOST docker load`",
    "container=enroot": "choose docker, podman or apptainer, or write it in task.command",
    "deploy.fan_out": "every host gets its copy from here, or use cluster.project for what it has",
    "logs": "use console_ranks, such as console_ranks=[0,3]",
    "on_disconnect": "use disconnect_s: never keeps a run going without a launch",
    "outputs": "use pull_outputs: auto or never",
    "rendezvous.serve": "start etcd yourself and name it by rendezvous.endpoint",
    "stop": "use grace_s, such as grace_s=30",
    "task.extra_args": "use task.args_after, or words after `--`",
    "sweep": "-m runs one job after the other; to queue several, launch each with detach=true",
}
"""By the full key, or by a group and its option, such as `container=enroot`."""
