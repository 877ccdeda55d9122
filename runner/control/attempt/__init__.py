"""One attempt of a run, as the controller monitors it."""
