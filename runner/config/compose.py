"""Composer: YAML and a command line become plain data, by way of Hydra."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import re
import tempfile
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from hydra._internal.core_plugins.bash_completion import BashCompletion
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import ConfigCompositionException
from hydra.types import RunMode
from omegaconf import DictConfig, open_dict

from runner.config import primary, rerun
from runner.config.contact import CONTACT_CHOICES
from runner.config.error_messages import explain_error, with_all_refused
from runner.config.hydra_settings import override_problems
from runner.config.overrides import hydra_value, override_key, parse_overrides, to_hydra
from runner.config.primary import HydraInput
from runner.config.request import FailedRun, RequestBuilder, as_sweep, as_typed
from runner.config.schema import GROUPS
from runner.config.search_path import ConfigFiles, conf_folders, hydra_session
from runner.config.task import append_arguments, new_run_id
from runner.config.validation import suggest
from runner.core.errors import ConfigError, Problem, is_output_error
from runner.core.model.spec import LaunchRequest
from runner.core.shell import this_program

if TYPE_CHECKING:
    from hydra._internal.hydra import Hydra

    from runner.config.search_path import RememberingLoader, Sources
    from runner.core.model.results import Origin


@contextlib.contextmanager
def open_composer(
    config_dirs: Sequence[str] = (),
    arguments: Sequence[str] = (),
    *,
    for_launches: bool = False,
    shipped_only: bool = False,
) -> Iterator[Composer]:
    """Open a composer that looks for YAML in these folders, the user's own and the shipped one.

    The program gets `arguments` after its own. For launches somebody has to say what to run.
    """
    folders = conf_folders(config_dirs)[-1:] if shipped_only else conf_folders(config_dirs)
    with hydra_session(folders, primary.SHIPPED) as hydra:
        yield Composer(hydra, ConfigFiles(folders), arguments, for_launches=for_launches)


class Composer:
    """Hydra with our search path and our error messages."""

    def __init__(
        self, hydra: Hydra, files: ConfigFiles, arguments: Sequence[str], *, for_launches: bool
    ) -> None:
        self._hydra, self._files, self._arguments = hydra, files, arguments
        self._loader = cast("RememberingLoader", hydra.config_loader)
        self._builder = RequestBuilder(
            files, arguments, self._compose_config, for_launches=for_launches
        )

    def compose(
        self, overrides: Sequence[str], contact_keys: Collection[str] | None = None
    ) -> LaunchRequest:
        """Compose one run, or raise a ConfigError with every problem.

        With `contact_keys`, only what reaches the hosts and these keys are resolved and judged.
        """
        try:
            with self._translate_errors(overrides):
                hydra_input = self._prepare(overrides)
                config = self._compose_some(hydra_input, contact_keys)
        except ConfigError as error:
            further = self._further_problems(error, overrides, contact_keys)
            raise ConfigError([*error.problems, *further]) from error
        with self._translate_errors(overrides):
            HydraConfig.instance().set_config(config)
            hydra = config.hydra
            config = _drop_hydra_section(config)
            return self._builder.build(config, hydra, overrides, hydra_input, contact_keys)

    def _further_problems(
        self, first: ConfigError, overrides: Sequence[str], contact_keys: Collection[str] | None
    ) -> list[Problem]:
        """Return the problems after the first: Hydra stops at the first value that it refuses.

        None are looked for where the cluster or the task is misspelt: most would be consequences.
        """
        keys = {problem.subject for problem in first.problems}
        if keys & {rerun.KEY} or any(suggest(key, GROUPS) for key in keys if "." not in key):
            return []
        named = tuple(f"{key}." for key in keys)
        remaining = [w for w in overrides if not f"{override_key(w)}.".startswith(named)]
        if len(remaining) < len(overrides):
            try:
                self.compose(remaining, contact_keys)
            except ConfigError as error:
                return list(error.problems)
        return []

    def sweep(self, overrides: Sequence[str]) -> list[LaunchRequest]:
        """Compose every run of a `--multirun`, or raise a ConfigError with every problem of all."""
        # Those that make the runs are in the words of each.
        own = [w for w in overrides if re.match(r"hydra[./](?!sweeper\b)", override_key(w))]

        def compose(config: DictConfig) -> LaunchRequest | FailedRun:
            hydra = HydraConfig.get()
            words = as_typed(hydra.overrides.task)
            try:
                return self._builder.build(config, hydra, [*own, *words], hydra_input)
            except ConfigError as error:
                return FailedRun(f"run {hydra.job.num + 1}: {' '.join(words)}", error.problems)

        with self._translate_errors(overrides), tempfile.TemporaryDirectory() as folder:
            hydra_input = self._prepare(overrides)
            # Hydra's sweepers write there; each of our runs has its own record.
            hydra_overrides = [*hydra_input.overrides, f"hydra.sweep.dir={hydra_value(folder)}"]
            args = (hydra_input.primary, compose, hydra_overrides)
            batches = self._hydra.multirun(*args, with_log_configuration=False)
            results = [job.return_value for batch in batches for job in batch]
        return as_sweep(results, new_run_id("sweep"))

    def origins(self, overrides: Sequence[str], key: str = "") -> list[Origin]:
        """Return the origin of a value, or of every value below a key; illegal values included."""
        from runner.config import provenance  # noqa: PLC0415

        with self._translate_errors(overrides):
            hydra_input = self._prepare(overrides)
            config = self._compose_config(hydra_input)
            layers = provenance.collect_layers(self._sources(overrides, hydra_input))
            return provenance.ProvenanceTracer(_drop_hydra_section(config), layers).origins(key)

    def _sources(self, overrides: Sequence[str], hydra_input: HydraInput) -> Sources:
        """Return what the last configuration was composed of."""
        of_hydra = hydra_input.overrides[-len(overrides) :] if overrides else ()
        typed = dict(zip(of_hydra, overrides, strict=True))
        return self._loader.sources(typed, self._files.explicit_paths)

    def yaml(self, overrides: Sequence[str], key: str = "", *, resolve: bool = False) -> str:
        """Return the configuration, or what stands below a key, as YAML."""
        from runner.config.provenance import as_yaml  # noqa: PLC0415

        with self._translate_errors(overrides):
            config = self._compose_config(self._prepare(overrides))
            return as_yaml(_drop_hydra_section(config), key, resolve=resolve)

    def print_help(self, overrides: Sequence[str], parser: argparse.ArgumentParser) -> None:
        """Have Hydra print what can be set, and what is; the parser has the flags."""
        with self._translate_errors(overrides):
            hydra_input = self._prepare(overrides)
            # Raises our own message where something is wrong.
            config = self._compose_config(hydra_input)
            hydra_input.overrides.extend(append_arguments(config, self._arguments))
            hydra_input.overrides.append(f"hydra.help.app_name={hydra_value(this_program())}")
            args = argparse.Namespace(overrides=hydra_input.overrides, resolve=False)
            self._hydra.app_help(hydra_input.primary, parser, args)

    def complete(self, overrides: Sequence[str], word: str) -> list[str]:
        """Return what a word after these overrides may become; `=` or `.` ends what goes on."""
        hydra_input = self._prepare(overrides)
        completion = BashCompletion(self._hydra.config_loader)
        found = completion._query(hydra_input.primary, " ".join([*hydra_input.overrides, word]))  # noqa: SLF001
        ours = [each for each in found if not re.match(r"[+~]?hydra\b|.*=base$", each)]
        is_bool = len(ours) == 1 and ours[0] in (f"{word}true", f"{word}false")
        return [f"{word}true", f"{word}false"] if is_bool else ours

    @contextlib.contextmanager
    def _translate_errors(self, overrides: Sequence[str]) -> Iterator[None]:
        """Turn any error of Hydra into a ConfigError with one problem."""
        try:
            yield
        except ConfigError:
            raise
        except Exception as error:
            if os.environ.get("HYDRA_FULL_ERROR") == "1" or is_output_error(error):
                raise
            raise ConfigError([explain_error(error, self._files, overrides)]) from error

    def _prepare(self, overrides: Sequence[str]) -> HydraInput:
        """Parse overrides, and load the record that `rerun` names.

        A program without `task=` stands alone: nothing of the default task is kept.
        """
        parsed = parse_overrides(overrides)
        hydra_overrides = list(map(to_hydra, overrides))
        problems = list(override_problems(parsed))
        problems += primary.group_problems(self._files, overrides, parsed)
        for word in overrides if self._arguments else ():
            if override_key(word) == "task.extra_args" and not word.startswith("~"):
                hint = "give them in one place; ~task.extra_args takes out those of the YAML"
                problems.append(Problem(word, "words after `--` are arguments, too", hint))
        if problems:
            raise ConfigError(problems)
        if (name := rerun.requested_run(parsed)) is not None:
            run = rerun.find_record(name, Path.cwd())
            self._files.explicit_paths[rerun.CONFIG_NAME] = run.config_file
            given = HydraInput(rerun.CONFIG_NAME, hydra_overrides, parsed, record=run)
            node = run.primary_config(given.keys, self._files.shipped_primary)
            ConfigStore.instance().store(rerun.CONFIG_NAME, node)
            return given
        primary_name, chosen = self._load_primary()
        hydra_input = HydraInput(primary_name, hydra_overrides, parsed, chosen=chosen)
        programs = [o for o in parsed if o.key_or_group in rerun.TASK_PROGRAM_KEYS]
        if "task" not in hydra_input.keys and any(o.value() is not None for o in programs):
            return dataclasses.replace(hydra_input, overrides=["task=base", *hydra_overrides])
        return hydra_input

    def _load_primary(self) -> tuple[str, dict[str, Any]]:
        """Return the name of the primary config, and what the user's own one chooses by group."""
        own = self._files.find(primary.SHIPPED)[0]
        if own == self._files.shipped_primary:
            return primary.SHIPPED, {}
        self._files.explicit_paths[primary.MERGED] = own
        merged, chosen = primary.merge(own, self._files.shipped_primary)
        ConfigStore.instance().store(primary.MERGED, merged)
        return primary.MERGED, chosen

    def _compose_config(self, hydra_input: HydraInput) -> DictConfig:
        given = (hydra_input.primary, hydra_input.overrides, RunMode.RUN)
        try:
            return self._hydra.compose_config(*given)
        except ConfigCompositionException as error:
            loader = self._hydra.config_loader
            defaults = lambda: loader.compute_defaults_list(*given).defaults  # noqa: E731
            raise with_all_refused(error, self._files, defaults) from error.__cause__

    def _compose_some(
        self, hydra_input: HydraInput, contact_keys: Collection[str] | None
    ) -> DictConfig:
        """Compose; with `contact_keys`, files of a launch alone may be wrong or missing."""
        try:
            return self._compose_config(hydra_input)
        except Exception:
            if contact_keys is None or hydra_input.record:
                raise
        free = [word for word in CONTACT_CHOICES if word.partition("=")[0] not in hydra_input.keys]
        overrides = [*free, *hydra_input.overrides]
        return self._compose_config(dataclasses.replace(hydra_input, overrides=overrides))


def _drop_hydra_section(config: DictConfig) -> DictConfig:
    with open_dict(config):
        del config["hydra"]
    return config
