"""The chaos test: random harm to runs on real hosts, and what must hold after each.

Two runs are on at once: a victim, and a bystander that must not notice unless a whole host was hit.
"""
