"""Settings of the fast tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Few examples, no clock, no database: fast, and the same load on every machine.
settings.register_profile(
    "fast",
    max_examples=20,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fast")
