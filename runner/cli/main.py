"""The command line: `python -m runner [KEY=VALUE …] [FLAGS]`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from runner import __version__
from runner.cli.command import print_error
from runner.cli.parser import Parser, is_override, parse_verb
from runner.config.search_path import conf_folders, shipped_folder
from runner.core.errors import Interrupted, RunnerError

if TYPE_CHECKING:
    from runner.config.compose import Composer
    from runner.core.model.launch_request import LaunchRequest

INFO_TOPICS = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
SWEEP_STOPPING_CODES = (5, 129, 130, 143)
"""Exit codes after which `--multirun` starts no other run: the user interrupted it, or processes of
the last run may be left, as after a closed terminal."""


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command line; return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["help"]:
        words[0] = "--help"
    if not words or words[0].startswith("-") or is_override(words[0]):
        return for_each_run(words, _launch_run)
    try:
        return parse_verb(words)
    except RunnerError as error:
        return print_error(error)


def entry() -> NoReturn:
    """Exit with the code of `main`."""
    for descriptor in range(3):  # else our own pipes and sockets would get the closed ones
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # such as `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 128 + signal.SIGPIPE
    sys.exit(code)


def for_each_run(argv: Sequence[str], job: Callable[[LaunchRequest], int]) -> int:
    """Call `job` for every run of the command line, one after the other.

    Returns:
        The first exit code that is not 0, or the one that ended a sweep.
    """
    try:
        runs = _compose_runs(argv)
    except RunnerError as error:
        return print_error(error)
    codes: list[int] = []
    for number, run in enumerate(runs, start=1):
        if len(runs) > 1:
            _print_stderr(f"run {number} of {len(runs)}: {' '.join(run.overrides)}")
        codes.append(_run_job(run, job))
        if codes[-1] in SWEEP_STOPPING_CODES:
            break
    if len(runs) > 1:
        not_started = f", {len(runs) - len(codes)} not started" if len(codes) < len(runs) else ""
        _print_stderr(f"{codes.count(0)} of {len(runs)} runs succeeded{not_started}")
    if codes and codes[-1] in SWEEP_STOPPING_CODES:
        return codes[-1]
    return next((code for code in codes if code), 0)


def _print_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _launch_run(composed: LaunchRequest) -> int:
    # Imported here, because showing a configuration needs no launch.
    from runner.workflows.launch import run  # noqa: PLC0415

    return run(composed)


def _run_job(run: LaunchRequest, job: Callable[[LaunchRequest], int]) -> int:
    try:
        return job(run)
    except RunnerError as error:
        return print_error(error)
    except KeyboardInterrupt:
        return 130


def _compose_runs(argv: Sequence[str]) -> list[LaunchRequest]:
    """Return the runs to launch; none if the command line only asks for information."""
    try:
        flags = _parser().parse(argv)
        if flags.version:
            print(f"runner {__version__}")
            return []
        folders = conf_folders(flags.config_dir)
        # Imported here, because Hydra takes most of the start-up time.
        from runner.config.compose import open_composer  # noqa: PLC0415

        with open_composer(folders, shipped_folder()) as composer:
            if _show_info(composer, flags):
                return []
            overrides = flags.overrides
            runs = composer.sweep(overrides) if flags.multirun else [composer.compose(overrides)]
            return [replace(run, config_dirs=tuple(flags.config_dir)) for run in runs]
    except KeyboardInterrupt:
        raise Interrupted(130) from None


def _show_info(composer: Composer, flags: argparse.Namespace) -> bool:
    """Print the information that a flag asks for; return whether one did."""
    overrides = flags.overrides
    if flags.help:
        composer.show(overrides, lambda hydra, name, args: hydra.app_help(name, _parser(), args))
    elif flags.hydra_help:
        composer.show(None, lambda hydra, name, args: hydra.hydra_help(name, _parser(), args))
    elif flags.cfg:
        composer.show(
            overrides,
            lambda hydra, name, args: hydra.show_cfg(
                name, args.overrides, flags.cfg, flags.package, flags.resolve
            ),
        )
    elif flags.info:
        composer.show(
            overrides, lambda hydra, name, args: hydra.show_info(flags.info, name, args.overrides)
        )
    elif flags.shell_completion:
        composer.show(None, lambda hydra, name, _: hydra.shell_completion(name, overrides))
    else:
        return False
    return True


class _LaunchParser(Parser):
    """The parser of a launch, with hints for settings written as flags."""

    def unknown_flag_hint(self, flag: str) -> str:
        key = flag.lstrip("-").replace("-", "_")
        return (
            f"settings are written KEY=VALUE: {key}=..., or task.args.{key}=... for an argument of "
            "the program"
        )


def _parser() -> Parser:
    """Return a parser with Hydra's flags, without those that replace the config or unpickle."""
    parser = _LaunchParser("python -m runner")
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE sets, GROUP=OPTION chooses a file")
    add = parser.add_argument
    add("--config-dir", "-cd", action="append", default=[], metavar="DIR", help="YAML of yours")
    add("--resolve", action="store_true", help="with --cfg: interpolations resolved")
    add("--package", "-p", metavar="KEY", help="with --cfg: this part only")
    add = parser.add_mutually_exclusive_group().add_argument
    add("--run", "-r", action="store_true", help="run once, which is the default")
    add("--multirun", "-m", action="store_true", help="a run for each of KEY=VALUE1,VALUE2")
    add("--help", "-h", action="store_true", help="what this is, and what can be set")
    add("--hydra-help", action="store_true", help="what can be set of Hydra")
    add("--version", action="store_true", help="our version")
    add("--cfg", "-c", choices=("job", "hydra", "all"), help="print the configuration")
    add(
        "--info",
        "-i",
        nargs="?",
        const="all",
        choices=INFO_TOPICS,
        help="print what Hydra composes from",
    )
    add("--shell-completion", "-sc", action="store_true", help="install=SHELL, uninstall=SHELL")
    return parser
