"""The parts of a launch, beside its verb."""
