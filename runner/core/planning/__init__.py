"""From spec and facts to a plan: a pure function."""
