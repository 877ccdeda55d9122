"""The SSH transport. Fabric and paramiko live here only."""
