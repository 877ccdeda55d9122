"""Printed next commands: each place of the source that prints one names the test that runs it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from runner.cli.verb import verb_names
from runner.core.outcome.known_failures import FAILURE_PATTERNS
from tests.golden.test_source import FILES, PACKAGE, Function, parsed
from tests.lab.launching import ROOT

OF_A_RUN = re.compile(r"\{this_program\(\)\} (attach|logs|pull|stacks|stop|why) \{\S*flags\}")
"""A verb and the words that find a run: `test_a_run_needs_nothing_of_what_launched_it`."""

TEMPLATES = {"cli/commands/deploy.py::deploy", "cli/commands/exec.py::exec_"}
TEMPLATES |= {"cli/commands/forward.py::forward", "config/rerun.py::_elsewhere_hint"}
TEMPLATES |= {"control/history/named_runs.py::_only_beginning"}
"""Where a reader fills in a word in capitals."""

NAMES = {"cli/main.py::_show_help", "cli/main.py::print_help"}
NAMES |= {"cli/parser.py::__init__", "cli/parser.py::launch_parser"}
NAMES |= {"ui/layout.py::_match_command"}
"""Where nothing but the program is named."""

EVERYDAY, RECORD = "tests/lab/test_everyday_projects.py", "tests/lab/test_run_by_record.py"
COMMAND_LINE = "tests/golden/test_command_line.py"
RUN_BY = {
    f"{EVERYDAY}::test_every_next_command_runs_as_printed": (
        "cli/commands/stop.py::_list_hint",
        "cli/selection.py::contact_for_run",
        "config/error_messages.py::_undeletable_key",
        "config/primary.py::default_task_problems",
    ),
    f"{EVERYDAY}::test_next_commands_of_other_verbs_run_as_printed": (
        "cli/scaffold.py::_print_next_steps",
        "config/error_messages.py::_missing_option",
        "control/rpc/bootstrap.py::boot_problem",
        "control/record/run_store.py::read_result",
        "workflows/runs/discovery.py::_run_not_found",
    ),
    f"{EVERYDAY}::test_next_commands_of_a_check_run_as_printed": (
        "checks/code.py::code",
        "checks/machine.py::_memory_findings",
        "core/planning/readiness.py::free_space_hint",
    ),
    f"{RECORD}::test_a_run_needs_nothing_of_what_launched_it": (
        "cli/commands/ps.py::others_from_here",
        "cli/commands/stop.py::stop",
        "cli/selection.py::_record_of_shortened",
        "ui/reports/report.py::detach_notice",
    ),
    f"{RECORD}::test_latest_is_this_folders_and_stop_takes_one_that_is_on": (
        "ui/reports/report.py::ended_notice",
    ),
    "tests/lab/test_report_page.py::test_the_verb_writes_the_page_of_runs": (
        "cli/commands/report.py::report",
        "ui/page/summary.py::next_commands",
    ),
    "tests/lab/test_failfast.py::test_a_powered_off_host_ends_all_without_a_controller": (
        "control/record/rerun_command.py::rerun_without_lost",
    ),
    f"{RECORD}::test_a_run_is_found_whatever_its_nodes_are_called_now": (
        "cli/commands/clean.py::_runs_elsewhere",
    ),
    "tests/lab/test_check.py::test_smoke_and_bandwidth_are_real_runs": (
        "cli/commands/check.py::_run_collectives",
    ),
    "tests/lab/test_history.py::test_a_sweep_ends_with_the_comparison_of_its_runs": (
        "workflows/sweep.py::report_commands",
    ),
    "tests/lab/test_debugging.py::test_a_rank_waits_for_a_debugger": (
        "core/planning/debug_rank.py::debug_note",
    ),
    "tests/lab/test_fabfile.py::test_words_are_those_of_the_verb": ("verbs.py::get_arguments",),
    f"{COMMAND_LINE}::test_a_task_is_asked_for": ("cli/main.py::_compose_runs",),
    f"{COMMAND_LINE}::test_a_sweep_is_not_detached": ("cli/main.py::_detached_sweep",),
    f"{COMMAND_LINE}::test_the_rest_of_a_sweep_starts_as_printed": (
        "workflows/sweep.py::commands_for",
    ),
    "tests/lab/test_top.py::test_a_view_of_a_run_ends_with_it": (
        "cli/commands/top.py::contact",
        "workflows/top/subject.py::_not_found",
    ),
    "tests/golden/test_rerun.py::test_runs_that_are_not_there": ("config/request.py::_validate",),
    "tests/unit/cli/test_main.py::test_commands_in_messages_about_words_run_as_printed": (
        "cli/suggestions.py::misplaced_words",
        "cli/suggestions.py::unknown_verb",
        "config/error_messages.py::_unreadable_override",
    ),
    "tests/lab/test_slurm_scripts.py::test_commands_about_a_pending_run_work": (
        "workflows/runs/discovery.py::_not_begun",
        "workflows/slurm/queue.py::_leave",
        "workflows/slurm/submission.py::_flags",
    ),
    "tests/lab/test_slurm_sweeps.py::test_sweep_that_is_left_goes_on": (
        "workflows/slurm/sweep.py::_on_interrupt",
        "workflows/slurm/sweep.py::run",
    ),
    "tests/lab/test_notify.py::test_a_launch_tells_once_and_no_target_changes_its_end": (
        "config/spec_builder.py::build_spec",
    ),
    "tests/lab/test_command_lines.py::test_theirs_typed_here_names_ours": (
        "cli/translation.py::translated",
    ),
    "tests/golden/test_next_commands.py::test_a_remedy_names_a_verb": (
        "core/outcome/known_failures.py::explain",
    ),
}


def is_program(node: ast.AST) -> bool:
    """Return whether it is a call of `this_program`."""
    return isinstance(node, ast.Call) and ast.unparse(node.func).endswith("this_program")


def printing_places() -> Iterator[str]:
    """Yield each function that names the program for more than a verb about one run."""
    for path in FILES:
        for function in ast.walk(parsed(path)):
            if not isinstance(function, Function) or function.name == "this_program":
                continue
            texts = [node for node in ast.walk(function) if isinstance(node, ast.JoinedStr)]
            of_a_run = sum(len(OF_A_RUN.findall(ast.unparse(text))) for text in texts)
            if sum(map(is_program, ast.walk(function))) > of_a_run:
                yield f"{path.relative_to(PACKAGE)}::{function.name}"


def test_every_place_that_prints_a_command_has_a_test() -> None:
    """A new one is added to the test that runs it, and to this table."""
    places = [place for several in RUN_BY.values() for place in several]
    assert sorted({*places, *NAMES, *TEMPLATES}) == sorted(set(printing_places()))


@pytest.mark.parametrize("test", RUN_BY)
def test_the_test_is_there(test: str) -> None:
    """And belongs to those that `make test` runs."""
    file, _, name = test.partition("::")
    functions = {
        f.name: f for f in ast.parse((ROOT / file).read_text()).body if isinstance(f, Function)
    }
    assert "pytest.mark.all" not in [ast.unparse(mark) for mark in functions[name].decorator_list]


def test_a_remedy_names_a_verb() -> None:
    """Those of known failures are a verb alone, which goes to the project's own cluster."""
    remedies = [entry.remedy for entry in FAILURE_PATTERNS if "{program}" in entry.remedy]
    named = [re.findall(r"`\{program\} (\w+)`", remedy) for remedy in remedies]
    assert all(named)
    assert {verb for verbs in named for verb in verbs} <= {*verb_names()}
