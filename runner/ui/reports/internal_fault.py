"""Internal faults: unexpected exceptions as one reported error, their traceback in a file."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

from runner import __version__
from runner.core.errors import (
    NO_FOLDER,
    ConfigError,
    InternalFault,
    OutputLost,
    Problem,
    RunnerError,
    is_output_error,
)
from runner.ui.output import show

CRASH_FILE = "crash.txt"


def report_fault(error: Exception, folder: Path | None = None, hint: str = "") -> RunnerError:
    """Return the error to report, after the traceback was written to `folder`, or below /tmp.

    Where no file can be written, it is on standard error.
    """
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
