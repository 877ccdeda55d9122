"""The parts of several verbs: their flags, their hosts, and the runs that they find."""
