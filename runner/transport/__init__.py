"""How bytes reach a machine: SSH (Fabric) or a child process of this one."""
