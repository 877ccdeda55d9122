"""Session of events on one lab: runs are started, hit, judged, and kept as evidence."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.lab.chaos import judge
from tests.lab.chaos.judge import Expectation, Fate
from tests.lab.chaos.kinds import KINDS, Kind
from tests.lab.chaos.runs import Run, RunShape, launch
from tests.lab.chaos.scene import Scene
from tests.lab.lab import Lab
from tests.lab.launching import Launcher
from tests.lab.waiting import TimedOut, wait_until

TORCH_EVERY = 20
LIST_EVERY = 15
"""After so many events of a lab `ps` is asked about all of its runs."""

LAST = -1
"""The number of what is wrong after all events."""


@dataclass
class Outcome:
    number: int
    kind: str
    actions: str = ""
    run: str = ""
    fate: str = ""
    code: int | None = None
    seconds: float = 0.0
    total_s: float = 0.0
    orphans: int = 0
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        mark = "ok  " if not self.problems else "FAIL"
        code = "" if self.code is None else f" ({self.code})"
        what = f"{self.kind}: {self.actions}"
        times = f"{self.seconds:5.1f} s to the end, {self.total_s:5.1f} s in all"
        return f"{self.number:5} {mark} {self.orphans} orphans, {times}: {self.fate}{code}: {what}"


class Session:
    """Events on one lab, one after the other; each is decided by the seed and its number."""

    def __init__(
        self, lab: Lab, launcher: Launcher, seed: int, evidence: Path, part: str = "0"
    ) -> None:
        self._lab = lab
        self._launcher = launcher
        self._part = part
        self._seed = seed
        self._evidence = evidence
        self._victim: Run | None = None
        self._bystander: Run | None = None
        self._launches = 0
        self._count = 0
        self._unlisted: list[Run] = []

    def event(self, number: int, chosen: Kind | None = None) -> Outcome:
        rng = random.Random(f"{self._seed}:{number}")  # noqa: S311 (it is to be repeatable)
        kind = chosen or rng.choices(KINDS, [each.weight for each in KINDS])[0]
        outcome = Outcome(number, kind.name)
        began = time.monotonic()
        runs: list[Run] = []
        try:
            scene = self._scene(rng, kind)
            runs = [scene.victim, scene.bystander]
            happened = time.monotonic()
            expect = kind.act(scene)
            runs = [scene.victim, scene.bystander]
            outcome.actions = ", ".join(scene.actions)
            outcome.run = scene.victim.name
            self._judge(scene, expect, outcome, happened)
        except Exception as error:  # noqa: BLE001 (evidence first; the next event may do better)
            outcome.problems.append(f"{type(error).__name__}: {error}")
        self._count += 1
        if self._count % LIST_EVERY == 0 and not outcome.problems:
            outcome.problems += self._check_ps()
            runs = [*self._unlisted]
        outcome.total_s = time.monotonic() - began
        if outcome.problems:
            self._save_evidence(outcome, runs)
            self._reset_lab()
        return outcome

    def close(self) -> Outcome | None:
        """End what is on; return what is wrong with it, if anything is."""
        outcome = Outcome(LAST, "the end of all runs")
        for run in (self._victim, self._bystander):
            if run is not None:
                outcome.problems += self._finish(run)
        self._victim = self._bystander = None
        outcome.problems += self._check_ps()
        outcome.problems += judge.await_clean(self._lab, [])
        if not outcome.problems:
            return None
        self._save_evidence(outcome, self._unlisted)
        return outcome

    # What is on

    def _scene(self, rng: random.Random, kind: Kind) -> Scene:
        new = []
        if self._bystander is None:
            shape = RunShape(detached=rng.random() < 0.5)
            self._bystander = self._launch(shape)
            new.append(self._bystander)
        former = self._victim
        if former and (kind.needs_fresh_run or (kind.needs_launcher and former.is_attached)):
            if problems := self._finish(former):
                raise AssertionError("\n".join(problems))
            self._victim = None
        if not kind.needs_fresh_run and self._victim is None:
            self._victim = self._launch(self._shape(rng))
            new.append(self._victim)
        for run in new:
            run.wait_started()
        victim = self._victim or self._bystander
        return Scene(
            self._lab,
            self._launcher,
            rng,
            victim,
            self._bystander,
            relaunch=lambda: self._launch(self._shape(rng)),
        )

    def _shape(self, rng: random.Random) -> RunShape:
        real = self._launches % TORCH_EVERY == TORCH_EVERY - 1
        return RunShape(rng.choice([1, 1, 2]), ignores_term=rng.random() < 0.3, uses_torchrun=real)

    def _launch(self, shape: RunShape) -> Run:
        self._launches += 1
        name = f"c{self._seed}-{self._part}-{self._launches:04}"
        run = launch(self._lab, self._launcher, name, shape)
        self._unlisted.append(run)
        return run

    def _finish(self, run: Run) -> list[str]:
        """Have a run end with success; return what is wrong with that."""
        others = [each for each in (self._victim, self._bystander) if each and each is not run]
        run.request_end()
        problems = list(judge.await_controller(run, judge.ends(0))) if run.is_followed else []
        return problems + judge.await_clean(self._lab, others) + self._check_ended(run)

    # What must hold

    def _judge(self, scene: Scene, expect: Expectation, outcome: Outcome, happened: float) -> None:
        victim, bystander = scene.victim, scene.bystander
        outcome.fate = expect.fate.value
        if expect.fate is Fate.EITHER:
            expect = self._resolve_either(victim)
        both = [(victim, expect), (bystander, scene.bystander_expectation)]
        for run, wanted in both:
            if wanted.fate is Fate.ENDS and run.is_followed:
                outcome.problems += judge.await_controller(run, wanted)
        outcome.code = victim.controller.process.poll()
        for _, wanted in both:
            wanted.undo()
        others = [run for run, wanted in both if wanted.fate is Fate.GOES_ON]
        orphans = judge.await_clean(self._lab, others)
        outcome.seconds = time.monotonic() - happened
        outcome.orphans = len(orphans)
        outcome.problems += orphans
        for run, wanted in both:
            if wanted.fate is Fate.GOES_ON:
                outcome.problems += judge.check_goes_on(run)
            else:
                outcome.problems += self._check_ended(run)
        self._victim = victim if expect.fate is Fate.GOES_ON else None
        self._bystander = bystander if scene.bystander_expectation.fate is Fate.GOES_ON else None

    def _resolve_either(self, run: Run) -> Expectation:
        try:
            run.wait_started()
        except Exception:  # noqa: BLE001 (then it ends)
            return judge.ends()
        try:
            wait_until(
                lambda: any("stopping" in run.kinds(node) for node in self._lab.hosts), "a stop", 1
            )
        except TimedOut:
            return judge.GOES_ON
        return judge.ends()

    def _check_ended(self, run: Run) -> list[str]:
        code = run.controller.process.poll()
        own = run.is_followed and code is not None
        problems = [*judge.check_records(run), *judge.check_logs(run, whole=own and code != 3)]
        if own:
            problems += [*judge.check_console(run), *judge.check_result(run)]
        return problems

    def _check_ps(self) -> list[str]:
        """Return what is wrong with what `ps` says of the runs since the last look."""
        result = self._launcher("ps", "--all", "--json", "--cluster", "lab", seconds=60)
        if result.code != 0:
            return [f"ps: {result!r}"]
        rows = {row["run_id"]: row for row in json.loads(result.out)["runs"]}
        active = [self._victim, self._bystander]
        problems = [
            problem
            for run in self._unlisted
            for problem in _check_row(run, rows.get(run.name), is_active=run in active)
        ]
        if not problems:  # else _reset_lab closes the runs, after their evidence was saved
            for run in self._unlisted:
                if run not in active:
                    run.close()
            self._unlisted = [run for run in self._unlisted if run in active]
        return problems

    # After a violation

    def _save_evidence(self, outcome: Outcome, runs: Sequence[Run]) -> None:
        folder = self._evidence / f"{outcome.number:05}"
        folder.mkdir(parents=True, exist_ok=True)
        table = {name: list(map(repr, h.processes())) for name, h in self._lab.hosts.items()}
        record = {**asdict(outcome), "processes": table}
        (folder / "event.json").write_text(json.dumps(record, indent=1) + "\n")
        for run in runs:
            for node in self._lab.hosts:
                _copy(run.folder(node), folder / run.name / node)
            _copy(run.controller_folder, folder / run.name / "controller")
            for number, each in enumerate((run.controller, *run.controllers)):
                (folder / run.name).mkdir(exist_ok=True)
                (folder / run.name / f"said.{number}").write_text(each.err)

    def _reset_lab(self) -> None:
        """Go on with an empty lab."""
        for run in self._unlisted:
            run.controller.kill()
        self._lab.repair()
        self._lab.kill_all()
        for run in self._unlisted:
            run.close()
        self._unlisted = []
        self._victim = self._bystander = None


def _check_row(run: Run, row: dict[str, object] | None, *, is_active: bool) -> list[str]:
    if row is None:
        started = any(map(run.events, run.lab.hosts))
        return [f"{run.name}: ps does not list it"] if started else []
    if is_active and row["state"] != "running":
        return [f"{run.name}: it runs, but ps says {row['state']}"]
    is_unproven = any(event.get("verified") is False for event in run.last_events())
    is_over = row["ended"] and row["state"] in (*judge.ENDS, "stuck" if is_unproven else "lost")
    if not is_active and not (run.powerless or is_over):
        return [f"{run.name}: it is over, but ps says {row['state']}, ended: {row['ended']}"]
    return []


def _copy(source: Path, target: Path) -> None:
    if source.exists():
        shutil.copytree(
            source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("work", "ballast")
        )
