"""What runs on a host: link, guardian, supervisor, shim, facts. Python 3.8, standard library."""
