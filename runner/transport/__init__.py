"""Transports of bytes to a machine: SSH (Fabric), or a child process of this one."""
