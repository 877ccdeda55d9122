"""YAML and command line in, plain data out: Hydra and OmegaConf live here and in `explain`."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import re
import secrets
import string
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from runner.config import rerun
from runner.config.arguments import hydra_value
from runner.config.error_messages import Files, explain, plain
from runner.config.inputs import Asked
from runner.config.schema import Runner, register, strangers
from runner.config.search_path import GROUPS
from runner.config.spec_builder import build, program_name
from runner.config.validation import nearest
from runner.core.errors import ConfigError, Problem
from runner.core.model.launch_request import Composed

if TYPE_CHECKING:
    from hydra._internal.hydra import Hydra
    from hydra.conf import HydraConf
    from hydra.core.config_search_path import ConfigSearchPath

    from runner.config.provenance import Origin

PRIMARY = "runner"
NODES = "cluster.nodes."
RANGED = re.compile(r"^(\+{0,2}(?:cluster\.(?:only|exclude)|task\.nodes)=)([^'\"]*)$")


@dataclasses.dataclass(frozen=True)
class _Begun:
    """What Hydra is given for some words.

    Attributes:
        primary: The config to begin with.
        overrides: The words as Hydra wants them.
        parsed: The same, read.
        past: The run that is to be done again, whose record `primary` is.
    """

    primary: str
    overrides: list[str]
    parsed: list[Override]
    past: rerun.Past | None = None

    @property
    def keys(self) -> set[str]:
        """The keys and groups the words speak of."""
        return {each.key_or_group for each in self.parsed}


class _UserFolders(SearchPathPlugin):
    """Puts the user's folders of YAML before the shipped one.

    Hydra's own `--config-dir` and `hydra.searchpath` come after it: they add, but never shadow.
    """

    folders: ClassVar[Sequence[Path]] = ()

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        for folder in self.folders:
            search_path.prepend("user", f"file://{folder}", "main")


@contextlib.contextmanager
def open_composer(folders: Sequence[Path], shipped: Path) -> Iterator[Composer]:
    """Have Hydra look for YAML in `folders`, the first wins; `shipped` is our own among them."""
    _UserFolders.folders = folders[:-1]
    Plugins.instance().register(_UserFolders)
    register()
    with initialize_config_dir(str(folders[-1]), job_name=PRIMARY, version_base="1.3"):
        yield Composer(Files(folders, shipped))


class Composer:
    """Hydra, with our search order and our messages."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._run_ids: set[str] = set()

    @property
    def _hydra(self) -> Hydra:
        hydra = GlobalHydra.instance().hydra
        if hydra is None:
            raise RuntimeError("a Composer is used within `open_composer` only")
        return hydra

    def compose(self, words: Sequence[str]) -> Composed:
        """Compose one run.

        Raises:
            ConfigError: With every problem.
        """
        try:
            with self._explained(words):
                begun = self._begin(words)
                config = self._composed(begun)
        except ConfigError as error:
            raise ConfigError([*error.problems, *self._beside(error, words)]) from error
        with self._explained(words):
            HydraConfig.instance().set_config(config)
            hydra = config.hydra
            return self._finish(_without_hydra(config), hydra, words, begun)

    def _beside(self, refused: ConfigError, words: Sequence[str]) -> list[Problem]:
        """Return what else is wrong: Hydra stops at the first value that it refuses.

        Without the cluster or the task that was meant, much would seem to be.
        """
        keys = {problem.where for problem in refused.problems}
        if keys & {rerun.KEY} or any(nearest(key, GROUPS) for key in keys if "." not in key):
            return []
        rest = [word for word in words if word.lstrip("+").partition("=")[0] not in keys]
        if len(rest) < len(words):
            try:
                self.compose(rest)
            except ConfigError as error:
                return list(error.problems)
        return []

    def sweep(self, words: Sequence[str]) -> list[Composed]:
        """Compose every run of a `--multirun`, before any of them is started.

        Raises:
            ConfigError: With every problem of every run.
        """

        def compose(config: DictConfig) -> Composed | ConfigError:
            hydra = HydraConfig.get()
            try:
                return self._finish(config, hydra, list(hydra.overrides.task), begun)
            except ConfigError as error:
                return error

        with self._explained(words), tempfile.TemporaryDirectory() as folder:
            begun = self._begin(words)
            # Hydra's sweepers write there; each of our runs has a record of its own.
            overrides = [*begun.overrides, f"hydra.sweep.dir={hydra_value(folder)}"]
            batches = self._hydra.multirun(
                begun.primary, compose, overrides, with_log_configuration=False
            )
            results = [job.return_value for batch in batches for job in batch]
        errors = [result for result in results if isinstance(result, ConfigError)]
        if errors:
            raise ConfigError(list(dict.fromkeys(p for error in errors for p in error.problems)))
        if len({composed.run_dir for composed in results}) < len(results):
            what = "every run of a --multirun needs a folder of its own"
            raise ConfigError([Problem("run_dir", what, "leave out run_id and run_dir")])
        return results

    def origins(self, words: Sequence[str], key: str = "") -> list[Origin]:
        """Return where a value comes from, or every value below a key.

        What is wrong with the values themselves is not told: this is for finding out.

        Raises:
            ConfigError: It cannot be composed, or there is no such key.
        """
        from runner.config.layers import layers, of_record  # noqa: PLC0415
        from runner.config.provenance import Tracer  # noqa: PLC0415

        with self._explained(words):
            begun = self._begin(words)
            config = self._composed(begun)
            defaults = self._hydra.config_loader.compute_defaults_list(
                begun.primary, begun.overrides, RunMode.RUN
            )
            roots = [
                Path(source.path)
                for source in config.hydra.runtime.config_sources
                if source.schema == "file"
            ]
            typed = dict(zip(begun.overrides[-len(words) :], words, strict=True)) if words else {}
            lines = [(str(each.input_line), each) for each in defaults.config_overrides]
            settings = [(typed.get(line, line), each) for line, each in lines]
            past = begun.past
            record = {begun.primary: of_record(past.where, past.kept(begun.keys))} if past else {}
            sources = layers(defaults.defaults, roots, settings, record)
            return Tracer(_without_hydra(config), sources).origins(key)

    def yaml(self, words: Sequence[str], key: str = "", *, resolve: bool = False) -> str:
        """Return the configuration, or what stands below a key, as YAML.

        Raises:
            ConfigError: It cannot be composed or resolved, or there is no such key.
        """
        from runner.config.provenance import as_yaml  # noqa: PLC0415

        with self._explained(words):
            config = self._composed(self._begin(words))
            return as_yaml(_without_hydra(config), key, resolve=resolve)

    def show(
        self,
        words: Sequence[str] | None,
        question: Callable[[Hydra, str, argparse.Namespace], None],
    ) -> None:
        """Have Hydra print something about the configuration, or about itself where that is None.

        Raises:
            ConfigError: It cannot be composed, or has no such part.
        """
        with self._explained(words or ()):
            begun = self._begin(words or ())
            if words is not None:
                # For our words where something is wrong: Hydra would print its own.
                self._composed(begun)
            args = argparse.Namespace(overrides=begun.overrides, resolve=False)
            try:
                question(self._hydra, begun.primary, args)
            except SystemExit as error:
                raise ConfigError([]) from error  # Hydra has said why.

    @contextlib.contextmanager
    def _explained(self, words: Sequence[str]) -> Iterator[None]:
        """Turn whatever Hydra raises into a ConfigError of one problem."""
        try:
            yield
        except ConfigError:
            raise
        except Exception as error:
            if os.environ.get("HYDRA_FULL_ERROR") == "1":
                raise
            raise ConfigError([explain(error, self._files, words)]) from error

    def _begin(self, words: Sequence[str]) -> _Begun:
        """Read the words, and find what they say on record.

        A program given without `task=` stands alone: nothing of the default task is kept.

        Raises:
            ConfigError: There is no such record.
        """
        overrides = [RANGED.sub(_quote_ranges, word) for word in words]
        begun = _Begun(PRIMARY, overrides, OverridesParser.create().parse_overrides(overrides))
        name = rerun.named(begun.parsed)
        if name is not None:
            past = rerun.find(name, Path.cwd())
            self._files.named[rerun.CONFIG] = past.where
            node = past.primary(begun.keys, self._files.shipped / f"{PRIMARY}.yaml")
            ConfigStore.instance().store(rerun.CONFIG, node)
            return dataclasses.replace(begun, primary=rerun.CONFIG, past=past)
        programs = [o for o in begun.parsed if o.key_or_group in rerun.PROGRAMS]
        if "task" not in begun.keys and any(o.value() is not None for o in programs):
            return dataclasses.replace(begun, overrides=["task=base", *overrides])
        return begun

    def _composed(self, begun: _Begun) -> DictConfig:
        return self._hydra.compose_config(begun.primary, begun.overrides, RunMode.RUN)

    def _finish(
        self, config: DictConfig, hydra: HydraConf, words: Sequence[str], begun: _Begun
    ) -> Composed:
        """Check what Hydra composed, and turn it into plain data."""
        past, replaced = begun.past, rerun.replaces_program(begun.parsed)
        chosen = {
            group: f"{group}/{option}"
            for group, option in hydra.runtime.choices.items()
            if isinstance(option, str) and not group.startswith("hydra/")
        }
        configs = [begun.primary, *sorted(chosen.values())]
        if OmegaConf.get_type(config) is not Runner:
            where = str(self._files.find(PRIMARY)[0])
            raise ConfigError([Problem(where, "its defaults list must begin with runner_base")])
        task = chosen.get("task", "").removeprefix("task/")
        name = task if task not in ("", "base") else program_name(plain(config.task, "task", []))
        cluster = chosen.get("cluster", "cluster").removeprefix("cluster/")
        if past:
            config.rerun = past.planned.run_id
            cluster = cluster if "cluster" in chosen else past.planned.cluster
            name = name if replaced else past.planned.task
        if not OmegaConf.is_interpolation(config, "run_id") and config.run_id is None:
            config.run_id = self._another_run_id(name)
        with self._located(configs, words):
            values = _resolved(config)
            given = [*hydra.overrides.hydra, *hydra.overrides.task]
            paths, declared = self._node_overrides(given, begun)
            cwd = str(Path.cwd())
            asked = Asked(values, cluster, name, cwd, os.environ, paths, declared)
            problems = list(strangers(values))
            if past is None and values.get(rerun.KEY) is not None:
                problems.append(rerun.misplaced(values[rerun.KEY]))
            spec, options = build(asked, problems)
        recorded, notes = past.again(spec, words, same=not replaced) if past else (None, ())
        return Composed(
            spec=spec,
            config_yaml=OmegaConf.to_yaml(config, resolve=False),
            sources=tuple(self._files.sources(configs)),
            notes=(*notes, *self._files.shadows(configs)),
            task_option=task,
            overrides=tuple(words),
            recorded=recorded,
            **options,
        )

    def _another_run_id(self, name: str) -> str:
        """Make a run id that no other run of a sweep has: in a long one, chance would see to it."""
        while (made := new_run_id(name)) in self._run_ids:
            pass
        self._run_ids.add(made)
        return made

    @contextlib.contextmanager
    def _located(self, configs: Sequence[str], words: Sequence[str]) -> Iterator[None]:
        """Say of each problem in which line of which file its key is set."""
        try:
            yield
        except ConfigError as error:
            raise ConfigError(
                [
                    dataclasses.replace(each, where=self._files.place(each.where, configs, words))
                    for each in error.problems
                ]
            ) from error

    def _node_overrides(
        self, overrides: Sequence[str], begun: _Begun
    ) -> tuple[list[tuple[str, ...]], list[str] | None]:
        """Return the paths below `cluster.nodes` that are set, and the entries they may speak of.

        `cluster.nodes` is open, or `cluster.nodes.gpu05.gpus=4` would need a `+` where only
        `gpu[01-16]` is in the YAML; so it takes a misspelt name too, and we look ourselves.
        """
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        ours = [o for o in parsed if o.key_or_group.startswith(NODES) and not o.is_delete()]
        if not ours:
            return [], None
        changes = {o.input_line for o in ours if not o.is_add() and not o.is_force_add()}
        rest = [word for word in overrides if word not in changes]
        nodes = self._composed(dataclasses.replace(begun, overrides=rest)).cluster.nodes
        paths = [tuple(o.key_or_group.removeprefix(NODES).split(".")) for o in ours]
        return paths, list(nodes) if isinstance(nodes, DictConfig) else []


def _without_hydra(config: DictConfig) -> DictConfig:
    with open_dict(config):
        del config["hydra"]
    return config


def _quote_ranges(match: re.Match[str]) -> str:
    """Quote the names with brackets in the value of an override: to Hydra they are lists."""
    return match[1] + re.sub(r"[\w.-]+(\[[\d,-]+\][\w.-]*)+", r'"\g<0>"', match[2])


def new_run_id(task: str) -> str:
    """Make a run id, `MMDD-HHMM-TASK-xxxx`; within a minute, one pair in 1.7 million is equal."""
    slug = re.sub(r"[^a-z0-9]+", "-", task.lower())[:40].strip("-") or "task"
    chance = "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(4))
    return f"{datetime.now().astimezone():%m%d-%H%M}-{slug}-{chance}"


def _resolved(config: DictConfig) -> dict[str, Any]:
    problems: list[Problem] = []
    values: dict[str, Any] = plain(config, "", problems)
    if problems:
        raise ConfigError(problems)
    return values
