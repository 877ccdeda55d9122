"""The command line: words, the program on Click, completion."""

import gc

# What imports make stays: to look through it again and again is a tenth of the start.
gc.set_threshold(50_000)
