"""The agent: our process at the host's end of a connection, one request handler per file."""
