"""The console: rank output and status, on a terminal or in a pipe."""
