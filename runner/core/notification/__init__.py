"""Notifications: targets, messages and their delivery, the same on the controller and on hosts."""
