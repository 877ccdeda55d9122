"""Fields of the configuration schema: how each kind of value is described and read."""

from __future__ import annotations

import dataclasses
from typing import Any

from runner.config.validation import Kind, Validator, join_or, kind, or_null

VARIABLE_NAMES = "list of names of variables"
NODE_RANGES = "list of names and ranges"
PATH = Kind("path", Validator.path)
TEXT = Kind("text, or null", Validator.text)
NODE_OR_MASTER = Kind(
    "name of a node, master (the first), or null: each has to succeed", Validator.text
)
NULLABLE_TEXT = Kind("text or null", Validator.optional_line)
ADDRESS = Kind("name, address or null", Validator.address)
NULLABLE_PORT = Kind("1 to 65535 or null", Validator.port)
PORTS = Kind("port, range such as 29500-29600, or auto", Validator.ports)
ENDPOINT = Kind("HOST:PORT, or null", Validator.endpoint)
KEY_FILE = or_null(PATH, "path of a file here, or null")
SECONDS = Kind("seconds, more than 0", Validator.seconds)
SECONDS_OR_OFF = kind(f"{SECONDS.legal}, or off", Validator.seconds, word="off")
SECONDS_OR_NEVER = kind(f"{SECONDS.legal}, or never", Validator.seconds, word="never")
SAMPLE_INTERVAL = kind(
    "seconds, 1 to 3600, or off", Validator.seconds, word="off", least=1, most=3600
)
NULLABLE_SECONDS = or_null(SECONDS, f"{SECONDS.legal}, or null")
COUNT = kind("whole number from 0", Validator.integer, minimum=0)
NULLABLE_RANK = or_null(COUNT, "number of a rank from 0, or null")
POSITIVE = kind("whole number from 1", Validator.integer, minimum=1)
NULLABLE_POSITIVE = or_null(POSITIVE, f"{POSITIVE.legal}, or null")
NULLABLE_WHOLE_SECONDS = or_null(POSITIVE, "whole seconds from 1, or null")
GPU_COUNT = kind("number from 0, or auto", Validator.int_or_auto, minimum=0)
RANK_COUNT = kind("number from 1, or auto", Validator.int_or_auto, minimum=1)
TEXTS = Kind("list of texts", Validator.text_list)
JUMP = Kind("text, list of texts or null", Validator.text_list)
ENV_MAPPING = Kind("mapping of names to texts, numbers, bools or null", Validator.env)
GPUS = Kind("number from 0, list of devices such as [0, 2], or auto", Validator.gpus)
PRELOAD = Kind("true, false, or list of modules such as [torch, transformers]", Validator.preload)
RANKS = Kind("all, a rank, or a list such as [0, 3]", Validator.ranks)
RUN_ID = Kind("up to 63 of a-z, 0-9 and '-', or null", Validator.run_id)
OUTPUTS = Kind("list of paths or patterns such as results/*.pt", Validator.outputs)
METRICS = Kind("list of paths or patterns such as metrics.jsonl", Validator.outputs)
RDZV_CONF = Kind("mapping such as {join_timeout: 600}", Validator.rdzv_conf)
NOTIFY = Kind(
    "list of shell commands such as curl -d @- https://ntfy.sh/$TOPIC", Validator.text_list
)
LINE_PATTERN = Kind(
    r"regular expression such as `epoch (\d+)/(\d+)`, or null", Validator.line_pattern
)
MOUNTS = Kind("list of texts such as /data:/data:ro", Validator.text_list)
SIZE = Kind("number with b, k, m or g, or null", Validator.text)
SIGNALS = Kind("list such as [SIGTERM, SIGUSR1], or null", Validator.signals)


def doc(help_text: str, of: Kind | str, default: Any = None) -> Any:
    """Return a dataclass field; a class as the default is its factory.

    A value is read by its kind; one that is described in words alone stays as it is.
    """
    of = Kind(of) if isinstance(of, str) else of
    metadata = {"help": help_text, "legal": of.legal, "read": of.read}
    if isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def choice(help_text: str, *words: str, null: bool = False) -> Any:
    """Return the field of a key that takes one of a few words, by default the first.

    With `null` the default is null, which is read as "".
    """
    one_of = kind(join_or(words), Validator.choice, legal=words)
    if null:
        return doc(help_text, or_null(one_of, join_or([*words, "null"]), ""))
    return doc(help_text, one_of, words[0])


def section(schema: type, help_text: str) -> Any:
    """Return the field of a section of keys."""
    return doc(help_text, "see below", schema)
