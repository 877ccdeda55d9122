"""Reader of origins: where the values of the configuration on record were set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runner.control.history.bounded_reader import Problems, read_json
from runner.control.record.file_names import ORIGINS_FILE
from runner.core.history.run_data import flat_config

MAX_PLACE = 1000  # characters


def read_origins(
    folder: Path, config: Mapping[str, Any], words: Sequence[str], problems: Problems
) -> Mapping[str, str]:
    """Return the place that set each key, as far as it is on record.

    Without a file of them, these are the words of the command line, which win over all files.
    """
    data = read_json(folder / ORIGINS_FILE, problems, optional=True)
    if isinstance(data, dict):
        pairs = ((key, place) for key, place in data.items() if isinstance(place, str))
        return {key: place[:MAX_PLACE] for key, place in pairs}
    if data is not None:
        problems.add(ORIGINS_FILE, "it is no mapping")
    keys = list(flat_config(config))
    origins = {}
    for word in words:
        set_key, is_setting, _ = word.partition("=")
        if word == "--":
            break  # the arguments of the program follow
        name = set_key.lstrip("+~")
        for key in keys if is_setting and "." in name else ():
            if f"{key}.".startswith(f"{name}."):
                origins[key] = f"command line: {word}"[:MAX_PLACE]
    return origins
