"""A whole run: its hosts, its attempts, and how it is found again."""
