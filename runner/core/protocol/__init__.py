"""What controller, agents and supervisors share: frames, events, states, paths."""
