"""Notification targets of the configuration: legal ones, of which no secret comes on record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from runner.config.validation import Validator
from runner.core.model.spec import Secret
from runner.core.notification.target import MAX_TARGETS, MIN_HIDDEN_CHARS, target_problem

WHERE = "notify"
HINT = "a command that /bin/sh runs with the message as its standard input"


def check_targets(
    validator: Validator, targets: Sequence[str], secrets: Mapping[str, Secret]
) -> tuple[str, ...]:
    """Return the targets; report those that cannot be told, or would put a secret on record."""
    if len(targets) > MAX_TARGETS:
        validator.add(WHERE, f"names {len(targets)} targets; {MAX_TARGETS} are the most")
    for index, target in enumerate(targets):
        where = f"{WHERE}[{index}]" if len(targets) > 1 else WHERE
        if problem := target_problem(target):
            validator.add(where, problem, HINT)
            continue
        for name, secret in secrets.items():
            text = secret.reveal()
            if len(text) >= MIN_HIDDEN_CHARS and text in target:
                message = f"holds the value of {name}, a secret, and would be recorded"
                validator.add(where, message, f"write ${name} in its place, in single quotes")
    return tuple(targets)
