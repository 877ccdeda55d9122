"""Protocol between controller, agents and supervisors: frames, events, states, paths."""
