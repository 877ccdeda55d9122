"""Programs that are copied to where the launchers are started."""
