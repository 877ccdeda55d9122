"""How a run ended and why: verdict, diagnosis, stacks."""
