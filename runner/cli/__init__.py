"""The command line: launches, verbs, and the files that `init` writes."""
