"""The command line: launches, verbs, and the files that `init` writes."""

import gc

# What imports make stays: to look through it again and again is a tenth of the start.
gc.set_threshold(50_000)
