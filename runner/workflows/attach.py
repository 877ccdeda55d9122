"""A run that is on, or over, joined from anywhere: its screen, its logs, its end."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from runner.control.attempt.monitor import Watch
from runner.control.record.download import Pulled
from runner.control.record.log_reader import LogReading, Starts
from runner.control.record.run_store import RunStore
from runner.control.rpc.session import Inbox
from runner.core.errors import ConfigError, Interrupted
from runner.core.model.launch_request import Composed
from runner.core.model.run_info import present
from runner.core.outcome.exits import SIGNALLED
from runner.core.outcome.verdict import Verdict, fold
from runner.core.planning.build_plan import Plan
from runner.core.protocol.events import Event, HostSilent
from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import is_rank, log_name, rank_of
from runner.core.protocol.remote_files import LOG, OUTPUT
from runner.ui.console.plain import Console
from runner.ui.reports import report
from runner.ui.reports.grep import Show
from runner.ui.reports.stacks import Standstill
from runner.workflows.discovery import Hosts, Recorded
from runner.workflows.download import bring, fetch
from runner.workflows.host_pool import SETTLE_S, whoami
from runner.workflows.next_attempt import Onward

ASK = "Ctrl-C: detach, and the run goes on, or stop it? Type d or s, and Enter (d)"

Choose = Callable[[Plan], Sequence[int]]
"""Returns the ranks that are wanted of a plan."""


class Joined:
    """One run on the hosts of a cluster, with its console, and its record on this machine.

    The record is written only where nobody else does, and only what it lacks.

    Attributes:
        wrote: Whether any of the ranks whose logs were read had written anything.
    """

    def __init__(self, composed: Composed, hosts: Hosts, run_id: str) -> None:
        self.hosts = hosts
        self.where = composed.where
        self.wrote = False
        self.console = hosts.contact.console
        self.run = hosts.one(run_id)
        self.recorded: Recorded = hosts.record(self.run)
        self.store = RunStore(composed.run_dir.parent / self.recorded.plan.run_id)
        self._unsure = False
        self._take_up()

    def _take_up(self) -> None:
        """Turn to the attempt on record."""
        self.plan = self.recorded.plan
        self.spec = self.hosts.take_up(self.plan)
        self._standstill = Standstill(
            self.plan, self.console.say, self.store.stacks_of(self.plan.attempt)
        )

    def _goes_on(self, watch: Watch) -> bool:
        """Turn to the attempt that follows; False if there is none, or it is not to be found.

        Raises:
            Interrupted: By a signal.
        """
        onward = Onward(self.hosts, self.run, self.plan)
        code = self._verdict(watch).exit_code
        over = self.over and not self.waits
        found = onward.find(watch, failed=0 < code < SIGNALLED, over=over)
        if found is None:
            self.hosts.take_up(self.plan)
            self._unsure = onward.promised
            return False
        self.run, self.recorded = onward.run, found
        self._take_up()
        return True

    @property
    def over(self) -> bool:
        """Whether nothing of it was on anywhere when we came."""
        seen = present(self.run.seen)
        whole = all(share.node in seen for share in self.plan.nodes)
        return whole and not any(each.on for each in seen.values())

    @property
    def waits(self) -> bool:
        """Whether its launch was about to start it once more when we came."""
        return any(each.waits for each in present(self.run.seen).values())

    def attach(self, tail: int | None) -> int:
        """Show it as its launch would; return the exit code."""
        begin = {} if tail is None else {"tail": tail}
        while True:
            writes = self.store.join(self.recorded.config_yaml, self.plan)
            watch = self._followed(begin, writes=writes)
            if watch.hung_up or self.console.deserted:  # there is nobody to read it
                return 128 + (signal.SIGHUP if watch.hung_up else signal.SIGPIPE)
            if watch.left:
                return self._leave(watch)
            self.console.begin_again()
            if not self._goes_on(watch):
                break
            begin = {}
            self.store.release()
        self.console.finish_ranks(SETTLE_S)
        verdict = self._verdict(watch)
        if writes:
            self._record(verdict)
        fetched = ""
        outputs = (OUTPUT,) if self.plan.outputs and self.spec.pull_outputs else ()
        missed = (LOG,) if tail is not None else ()  # what came before the last lines
        if writes and not watch.interrupted and (outputs or missed):
            self.store.release()
            kinds = (*missed, *outputs)
            fetched = fetch(
                self.hosts.contact, self.plan.run_id, self.store.folder, kinds, self.where
            )
        if self.store.failed:
            self.console.say(f"{self.store.failed}; the hosts have every log, in their workdir")
        self._report(verdict, fetched, kept=watch.accord.kept_by_any)
        return verdict.exit_code

    def _followed(self, begin: Mapping[str, float], *, writes: bool) -> Watch:
        """Show one attempt to its end."""
        self.console.say(report.opening(self.plan))
        watch = self.hosts.contact.watch(
            self.plan,
            self._log if writes else self._show,
            self._happened if writes else lambda _: None,
        )
        self._show_who_takes_part()
        watch.on_interrupt = Question(watch, self.hosts.contact.inbox, self.console)
        age = max(0.0, time.time() - self.recorded.info.began)
        watch.join(begin=begin, observe=self.over, age=age)
        watch.run()
        return watch

    def _show_who_takes_part(self) -> None:
        """Show the hosts that were asked for this run, and not those that are no part of it."""
        asked = {*self.hosts.facts, *self.hosts.silent}
        standby = {*self.recorded.info.standby}
        for name in asked.difference(share.node for share in self.plan.nodes):
            self.console.state(name, "spare" if name in standby else "")

    def _leave(self, watch: Watch) -> int:
        """Say how it goes on without us."""
        self.console.finish_ranks(SETTLE_S)
        leaving = report.leaving(
            *(self.plan, self.where),
            kept=watch.accord.kept,
            stopping=watch.stopping,
            apart=watch.accord.apart,
        )
        self.console.verdict(leaving)
        return 0

    def stop(self) -> tuple[Verdict, dict[str, int | str]]:
        """End it on every host, and prove that: also on those of earlier attempts.

        Returns:
            The verdict, and for each node what is left: how many processes, or why that is not
            known.

        Raises:
            Interrupted: The terminal was closed.
        """
        watch = self.hosts.contact.watch(self.plan)
        watch.join(logs=False, observe=self.over)
        if self.over:
            how = "is between two attempts" if self.waits else "had ended"
            self.console.say(f"run {self.plan.run_id} {how}; looking for what is left of it")
        else:
            watch.stop_for(f"told to stop by {whoami()}")
        watch.run()
        try:
            if watch.accord.onward and self._goes_on(watch):  # it had been decided before
                return self.stop()
        except Interrupted as error:
            what = f"interrupted; run {self.plan.run_id} was told to stop, its end was not seen"
            raise Interrupted(error.exit_code, what) from None
        if watch.left:  # the hosts go on with it by themselves, and politely
            raise Interrupted(128 + signal.SIGHUP, f"run {self.plan.run_id} is being stopped")
        verdict = self._verdict(watch)
        silent = self.hosts.silent
        left: dict[str, int | str] = {
            name: silent[name].what if name in silent else "it did not answer"
            for name in (*self.involved, *self.run.seen)
        }
        asking = self.hosts.asking(left)
        try:
            answers, problems = asking.some("prove", {"run_id": self.plan.run_id}, "proven")
        except Interrupted as error:
            what = f"interrupted; run {self.plan.run_id} was stopped, what is left is not known"
            raise Interrupted(error.exit_code, what) from None
        left.update({name: problem.what for name, problem in problems.items()})
        left.update({name: len(told["survivors"]) for name, told in answers.items()})
        return verdict, left

    @property
    def involved(self) -> tuple[str, ...]:
        """The nodes that have, or had, a part in it."""
        shares = (share.node for share in self.plan.nodes)
        return tuple(dict.fromkeys((*shares, *self.recorded.info.nodes_before)))

    def pull(self) -> dict[str, Pulled]:
        """Bring home what the hosts have of it; how it ended, too, if that is not on record here.

        Raises:
            NotReady: The folder cannot be written to, or somebody else does so.
            Interrupted: By a signal; the next pull goes on from there.
        """
        writes = self.store.join(self.recorded.config_yaml, self.plan)
        verdict: Verdict | None = None
        if writes and self.over and not self.waits and not self.store.ended:
            watch = self.hosts.contact.watch(self.plan, record=self.store.append_once)
            interrupted = _leaving(watch)
            watch.join(logs=False, observe=True)
            watch.run()
            if interrupted:
                raise Interrupted(128 + interrupted[0], "interrupted; nothing was fetched")
            verdict = self._verdict(watch)
        self.store.release()
        contact, run_id = self.hosts.contact, self.plan.run_id
        try:
            pulled = bring(contact, run_id, self.store.folder, nodes=self.run.seen)
        except Interrupted as error:
            again = f"python -m runner pull --run {run_id} {self.where}"
            what = f"interrupted; what came is kept, and this goes on from there: {again}"
            raise Interrupted(error.exit_code, what) from None
        if verdict and self.store.join(self.recorded.config_yaml, self.plan):
            self._record(verdict)
            self.store.release()
        return pulled

    def logs(self, show: Show, choose: Choose, begin: Mapping[str, float]) -> int:
        """Show what the ranks that `choose` returns of a plan wrote, one after the other.

        Returns:
            0, or 3 where some of it could not be had.
        """
        contact, say = self.hosts.contact, self.console.say
        if self.plan.attempt:
            say(f"attempt {self.plan.attempt + 1}, the last one; pull brings those before it, too")
        self._learn_ranks()
        ranks = choose(self.plan)
        unreached = {
            share.node
            for share in self.plan.nodes
            if share.node not in contact.sessions and set(share.ranks) & set(ranks)
        }
        reading = LogReading(
            *(contact.sessions, contact.inbox, self.spec.lost_s, self._noting(show), begin),
            lambda: self.console.full,
        )
        try:
            reading.run(self.plan.nodes, ranks)
        except Interrupted as error:  # nothing was begun that there were something to say of
            return error.exit_code
        for problem in reading.problems.values():
            say(f"{problem.where}: {problem.what}")
        for name in sorted(unreached - reading.problems.keys()):
            say(f"{name}: {self.hosts.silent[name].what}" if name in self.hosts.silent else name)
        return 3 if reading.problems or unreached else 0

    def follow(
        self,
        show: Show,
        choose: Choose,
        begin: Mapping[str, float],
        between: Callable[[], None] = lambda: None,
    ) -> int:
        """Likewise as they write it, to the end of the run; `between` is called after an attempt.

        Returns:
            0, or 3 where some of it could not be had; 128 and a signal.
        """
        first = self.plan.attempt
        while True:
            self._learn_ranks()
            try:
                ranks = choose(self.plan)
            except ConfigError as error:  # the node takes no part any more
                if self.plan.attempt == first:
                    raise
                self.console.say(str(error))
                return 0
            self._show_who_takes_part()
            watch = self.hosts.contact.watch(self.plan, _ranks_only(self._noting(show)))
            interrupted = _leaving(watch)
            watch.join(begin=begin, ranks=ranks, observe=True)
            watch.run()
            between()
            self.console.begin_again()
            if interrupted:
                return 128 + interrupted[0]
            if not self._goes_on(watch):
                break
            begin = {}
            self.console.say(f"attempt {self.plan.attempt + 1}")
        silent = (s.event.node for s in watch.observed if isinstance(s.event.body, HostSilent))
        missing = any(set(self.plan.of(node).ranks) & set(ranks) for node in silent)
        return 3 if missing else 0

    def _learn_ranks(self) -> None:
        """Put into the plan which ranks each node had so far, where only torch decides that."""
        if self.plan.numbered_by_torch:
            contact = self.hosts.contact
            starts = Starts(contact.sessions, contact.inbox, self.spec.lost_s).of(self.plan.nodes)
            nodes = (replace(s, ranks=starts.get(s.node, ())) for s in self.plan.nodes)
            self.plan = replace(self.plan, nodes=tuple(nodes))

    def _noting(self, show: Show) -> Show:
        def shown(node: str, rank: int, stream: str, data: bytes) -> None:
            self.wrote = True
            show(node, rank, stream, data)
            if self.console.deserted:
                self.hosts.contact.inbox.put((None, Frame("signal", {"signal": signal.SIGPIPE})))

        return shown

    def _log(self, node: str, source: str, stream: str, offset: int, data: bytes) -> None:
        self.store.write_log(node, log_name(self.plan.attempt, source, stream), offset, data)
        self._standstill.log(source)
        self._show(node, source, stream, offset, data)

    def _happened(self, event: Event) -> None:
        self.store.append_once(event)
        if not self.over:
            self._standstill.heard(event)

    def _show(self, node: str, source: str, stream: str, _: int, data: bytes) -> None:
        if is_rank(source):
            self.console.show(node, rank_of(source), stream, data)
        if self.console.deserted:
            self.hosts.contact.inbox.put((None, Frame("signal", {"signal": signal.SIGPIPE})))

    def _verdict(self, watch: Watch) -> Verdict:
        info = self.recorded.info
        return fold(self.plan, watch.observed, watch.seconds(info.began), info.past)

    def _record(self, verdict: Verdict) -> None:
        if not (self.over and self.store.ended) and not self._unsure:
            self.store.write_result(self.plan, verdict, self.recorded.info.began)

    def _report(self, verdict: Verdict, fetched: str, *, kept: bool) -> None:
        text = report.ending(
            self.plan,
            verdict,
            self.store.shown,
            self.store.tail,
            disconnect_s=0 if kept else self.spec.disconnect_s,
            where=self.where,
        )
        self.console.verdict("\n".join(filter(None, (fetched, text))))


def _ranks_only(show: Show) -> Callable[[str, str, str, int, bytes], None]:
    return lambda node, source, stream, _, data: show(node, rank_of(source), stream, data)


def _leaving(watch: Watch) -> list[int]:
    """Have every signal end that watch, and nothing else; return where they are noted."""
    noted: list[int] = []

    def leave(signum: int) -> bool:
        noted.append(signum)
        watch.leave()
        return False

    watch.on_interrupt = leave
    return noted


class Question:
    """What Ctrl-C means to somebody who only joined: on a terminal they are asked."""

    def __init__(self, watch: Watch, inbox: Inbox, console: Console) -> None:
        self._watch, self._inbox, self._console = watch, inbox, console
        self._asked = self._stops = False

    def __call__(self, signum: int) -> bool:
        """Return whether the watch is to take the signal as a launch does."""
        if signum == signal.SIGHUP or self._stops:
            return True
        if signum == signal.SIGPIPE:  # such as `| head`
            self._watch.leave()
            return False
        asks = sys.stdin is not None and sys.stdin.isatty()
        if signum == signal.SIGTERM or self._asked or not asks:
            self._watch.detach()
            return False
        self._asked = True
        self._console.say(ASK)
        self._console.phase(ASK)  # which stays in sight while the ranks go on talking
        threading.Thread(target=self._read, daemon=True, name="question").start()
        return False

    def _read(self) -> None:
        line = ""
        with contextlib.suppress(OSError, ValueError):
            line = sys.stdin.readline()
        self._stops = line.strip().lower() in ("s", "stop")
        word = "stop" if self._stops else "detach" if line else "leave"  # no answer decides nothing
        self._inbox.put((None, Frame("answer", {"word": word})))
