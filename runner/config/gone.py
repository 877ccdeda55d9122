"""Verbs and flags that are gone, and what to use instead."""

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
