"""The user interface: console, reports and tables."""
