"""Output of the verbs: text in which nothing acts upon a terminal; faults of our own as errors."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from runner import __version__
from runner.core.errors import (
    NO_FOLDER,
    STANDARD_OUTPUT,
    ConfigError,
    InternalFault,
    OutputLost,
    Problem,
    RunnerError,
    is_output_error,
)
from runner.core.shell import line, this_program
from runner.core.wire.text import join_some, printable_lines
from runner.ui.layout import (
    UNLIMITED_WIDTH,
    terminal_width,
    wrap_lines,
)

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

MAX_NAMED = 3
CRASH_FILE = "crash.txt"
COLOURS = {"warning": "33", "error": "1;31"}


def show(text: str, file: TextIO | None = None) -> None:
    """Print lines of the runner's own, to standard output unless to `file`.

    On a terminal, standard error is prose: see `message_text`.
    """
    text = message_text(text) if file is sys.stderr else printable_lines(text)
    print(text, file=file or sys.stdout)


def message_text(text: str, descriptor: int = 2) -> str:
    """Return lines of the runner's own as standard error takes them.

    On a terminal they are broken at blanks, and coloured.
    """
    width = terminal_width(descriptor)
    lines = wrap_lines(printable_lines(text), width - 1)
    is_grey = os.environ.get("TERM", "dumb") == "dumb" or os.environ.get("NO_COLOR")
    return lines if width == UNLIMITED_WIDTH or is_grey else coloured(lines)


def coloured(lines: str) -> str:
    """Return lines with `warning` and `error` in colour; their hints, and notes, are dim."""
    lines = re.sub(r"(?m)^ *note: .*(?:\n  .*)*", "\x1b[2m\\g<0>\x1b[0m", lines)
    return re.sub(
        r"(?m)^(warning|error)(: .*(?:\n  (?! ).*)*)((?:\n    .*)*)",
        lambda match: (
            f"\x1b[{COLOURS[match[1]]}m{match[1]}\x1b[0m{match[2]}\x1b[2m{match[3]}\x1b[0m"
        ),
        lines,
    )


def show_prose(text: str) -> None:
    """Print lines of the runner's own to standard output; on a terminal, broken at blanks."""
    show(wrap_lines(text, terminal_width() - 1))


def tell(text: str) -> None:
    show(text, file=sys.stderr)


def note(text: str) -> None:
    """Print what the user should know besides, to standard error."""
    tell(f"note: {text}")


def note_incomplete(run_ids: Sequence[str], what: str) -> None:
    """Say which runs have no end on record here: `what` has what is here."""
    if run_ids:
        names = join_some(run_ids, MAX_NAMED)
        note(f"no end of {names} is on record here: {what} has what is here; this brings the rest")
    for run_id in run_ids[:MAX_NAMED]:
        note(f"  {this_program()} pull {line(['--run', run_id])}")


class _NamedOutput(io.FileIO):
    """Standard output, with its name in the errors of writes."""

    def write(self, data: ReadableBuffer) -> int:
        try:
            return super().write(data)
        except OSError as error:
            error.filename = STANDARD_OUTPUT
            raise


def name_output(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    """Return standard output so that its errors differ from those of files: see `errors`."""
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_NamedOutput(stream.fileno(), "w", closefd=False)),
        encoding=stream.encoding,
        errors="backslashreplace",  # terminals and pipes may not take Unicode
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def report_fault(error: Exception, folder: Path | None = None, hint: str = "") -> RunnerError:
    """Return the error to report, after the traceback was written to `folder`, or below /tmp.

    Where no file can be written, it is on standard error.
    """
    import platform
    import tempfile

    if isinstance(error, OSError) and is_output_error(error):
        reason = f"[Errno {error.errno}] {error.strerror}"
        return OutputLost([Problem("", f"cannot write to standard output: {reason}", hint)])
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG and not folder:
        return ConfigError([Problem(str(error.filename), "this name of a file is too long")])
    if isinstance(error, FileNotFoundError) and not folder and not error.filename:  # getcwd(3)
        return ConfigError([NO_FOLDER])
    versions = f"runner {__version__}, Python {platform.python_version()}, {platform.platform()}"
    text = f"{versions}\n{''.join(traceback.format_exception(error))}"
    where = "the lines above"
    try:
        has_record = folder is not None and folder.is_dir()
        place = folder if folder and has_record else Path(tempfile.mkdtemp(prefix="runner-"))
        path = place / CRASH_FILE
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
        where = os.path.relpath(path) if has_record else str(path)
    except OSError:
        show(text, file=sys.stderr)
    kind = "".join(traceback.format_exception_only(error)).strip().partition("\n")[0]
    message = f"a fault of the runner itself ({kind}); its traceback is in {where}"
    return InternalFault([Problem("", message, hint)])


@contextlib.contextmanager
def reporting_faults(folder: Path, hint: Callable[[], str]) -> Iterator[None]:
    """Report what nothing expects, with its traceback in `folder` and what it means for a run."""
    try:
        yield
    except (RunnerError, BrokenPipeError):
        raise
    except Exception as error:
        raise report_fault(error, folder, hint()) from error
