"""The SSH transport: the only place of Fabric and paramiko."""
