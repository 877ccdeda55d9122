"""Templates of the files that `init` writes."""

from __future__ import annotations

FABFILE = '"""fab -l shows what there is."""\nfrom runner.verbs import *  # noqa: F403\n'
CLUSTER = """\
# The machines of cluster {cluster}: python -m runner cluster={cluster} task={task}
defaults: [base]

# In rank order. The name is the SSH name unless `host` is set; gpu[01-16] stands for sixteen.
# More keys of a node: addr, user, port, gpus, nproc_per_node, env, transport, interface.
nodes:
{nodes}

# The interpreter that has torch, on the hosts.
python: {python}

# SSH. null: as in your ~/.ssh/config.
ssh:
  user: {user}
  #port: null
  key: {key}
  #jump: null              # a host to go through, or a list of them
  #known_hosts: ~/.ssh/known_hosts
  #host_keys: strict       # strict: unknown hosts are refused; accept-new: they are learnt

# The other keys, with their defaults.
#gpus_per_node: auto       # auto: all of them; or a number
#nproc_per_node: auto      # ranks on a node; auto: one per GPU, one without GPUs
#backend: auto             # auto: nccl where every node has a GPU per rank, else gloo
#master: null              # the node of rank 0; null: the first
#master_port: auto         # auto: a free one; or 29500-29600, where a firewall needs it
#exclude: []               # nodes to leave out, such as [gpu3, "gpu[10-12]"]
#setup: []                 # lines for bash before the task, such as [module load cuda]
#project: null             # null: the code you stand in is pushed; or its folder on the hosts
#workdir: ~/.runner        # where runs are kept on the hosts
#env: {{}}                   # environment of all ranks, such as {{NCCL_DEBUG: INFO}}
#secrets: []               # names to take from your environment, never written anywhere
"""
TASK = """\
# Task {task}: python -m runner cluster={cluster} task={task}
defaults: [base]

# A Python file, relative to the folder you stand in. In its place: module (such as package.train),
# or command for what is not Python.
script: {script}

# Its arguments. true makes a flag alone, a list several values, null leaves one out.
# For one run: task.args.lr=0.2
#args: {{lr: 0.1, epochs: 3}}  # --lr 0.1 --epochs 3
#args_style: argparse      # hydra: lr=0.1 epochs=3; raw: a list of words
#local_rank_arg: null      # such as --local_rank, for an old script that takes it so
#entry: torchrun           # launch: torch.distributed.launch; plain: one process a node, without

# The other keys, with their defaults.
#env: {{}}                   # environment of the ranks; DIST_BACKEND, RANK and the like are set
#nodes: []                 # the nodes to use, such as [gpu1, "gpu[03-08]"]; []: all
#nnodes: null              # how many of them; null: all
"""
