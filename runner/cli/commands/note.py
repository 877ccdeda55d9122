"""The verb `note`: what the user has to say of a run, kept in its record."""

from __future__ import annotations

from collections.abc import Sequence

from runner.cli.verb import verb
from runner.core.errors import ConfigError, Problem, reason_of
from runner.core.text import printable
from runner.ui.output import show


@verb(
    "note",
    run="the run's id or its beginning, latest, or a folder",
    text="of the note; none removes it",
)
def note(run: str, text: tuple[str, ...] = (), *, words: Sequence[str] = ()) -> int:
    """Keep a note on a run, which compare and report show: note RUN TEXT.

    Without a text it is printed; "" removes it; one that begins with a dash comes after `--`.
    """
    from runner.control.history.named_runs import named_records
    from runner.control.history.note_reader import MAX_NOTE, read_note
    from runner.control.history.run_reader import read_run
    from runner.control.record.note_record import write_note

    folders = named_records([run])
    if len(folders) != 1:
        raise ConfigError([Problem("RUN", f"{run} is a sweep", "name one of its runs")])
    if not text and not words:
        if known := read_note(folders[0]):
            show("\n".join(map(printable, known.splitlines())))
        return 0
    content = " ".join((*text, *words)).strip()
    if len(content) > MAX_NOTE:
        message = f"a note has up to {MAX_NOTE:,} characters, not {len(content):,}"
        raise ConfigError([Problem("TEXT", message)])
    try:
        write_note(folders[0], content)
    except OSError as error:
        message = f"cannot write in {folders[0]}: {reason_of(error)}"
        raise ConfigError([Problem("note", message)]) from error
    run_id = read_run(folders[0], parts=frozenset()).run_id
    show(f"run {run_id}: {'the note is kept' if content else 'it has no note now'}")
    return 0
