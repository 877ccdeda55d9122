"""The verb `note`: what the user has to say of a run, kept in its record."""

from __future__ import annotations

from runner.cli.verb import verb
from runner.core.errors import ConfigError, Problem, reason_of
from runner.ui.output import show


@verb(
    "note",
    run="the run's id or its beginning, latest, or a folder",
    text="of the note; none removes it",
)
def note(run: str, text: tuple[str, ...] = ()) -> int:
    """Keep a note on a run, which compare and report show: note RUN TEXT.

    Without a text it is printed; "" removes it.
    """
    from runner.control.history.named_runs import named_records
    from runner.control.history.note_file import MAX_NOTE, read_note, write_note

    folders = named_records([run])
    if len(folders) != 1:
        raise ConfigError([Problem("RUN", f"{run} is a sweep", "name one of its runs")])
    if not text:
        if known := read_note(folders[0]):
            show(known)
        return 0
    words = " ".join(text).strip()
    if len(words) > MAX_NOTE:
        message = f"a note has up to {MAX_NOTE:,} characters, not {len(words):,}"
        raise ConfigError([Problem("TEXT", message)])
    try:
        write_note(folders[0], words)
    except OSError as error:
        message = f"cannot write in {folders[0]}: {reason_of(error)}"
        raise ConfigError([Problem("note", message)]) from error
    return 0
