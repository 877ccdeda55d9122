"""Host side: agent, guardian, supervisor, rank shim, facts. Python 3.8, standard library."""
