"""GPUs: inventory, health, and which processes use them."""
