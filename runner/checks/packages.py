"""Whether the packages that the project names are there, in versions that it allows."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from runner.checks.context import Case, majority
from runner.core import shell
from runner.core.model.facts import Facts
from runner.core.model.finding import Finding, Level
from runner.core.model.packages import Need, Wanted
from runner.core.model.spec import Node
from runner.core.planning.readiness import needs_python

FEW = 6
"""More packages are not written out in a command, but read from a file."""

IMPLEMENTATIONS = {"cpython": "CPython", "pypy": "PyPy"}


@dataclass
class _Seen:
    """What is to be said of one host."""

    node: Node
    facts: Facts
    missing: list[Wanted] = field(default_factory=list)
    doubtful: list[Wanted] = field(default_factory=list)
    excluded: list[Wanted] = field(default_factory=list)
    unwanted: list[Wanted] = field(default_factory=list)
    unlike_lock: list[Wanted] = field(default_factory=list)
    unlike_most: list[tuple[Wanted, str]] = field(default_factory=list)

    def version(self, wanted: Wanted) -> str:
        return (self.facts.python.packages or {}).get(wanted.name, "")

    def has(self, wanted: Wanted) -> bool:
        version = self.version(wanted)
        return bool(version) and _allowed(version, wanted.specifier)


def packages(case: Case) -> Iterator[Finding]:
    """An error where a host lacks what others have; what none has, or a version, is a warning.

    A file names more than a program needs, and hosts have more than their metadata tell: only that
    one host is worse than the others is sure enough to refuse a launch for.
    """
    if not needs_python(case.spec.task):
        return
    asked = [each for each in case.ready if each[1].python.packages is not None]
    hosts = [_Seen(node, facts) for node, facts in asked]
    wanted = {
        host.node.name: _meant(case.wants.packages, environment(host.facts)) for host in hosts
    }
    fine = {one: [host for host in hosts if host.has(one)] for one in case.wants.packages}
    common = {
        one.name: majority({h.node.name: h.version(one) for h in hosts if h.version(one)})
        for one in case.wants.packages
    }
    for host in hosts:
        for one in wanted[host.node.name]:
            _sort(host, one, common[one.name], usual=_usual(one, len(fine[one]), len(hosts)))
        yield from _said(case, host, len({one.name for one in wanted[host.node.name]}))


def _usual(one: Wanted, having: int, hosts: int) -> bool:
    """Whether to have it is the rule here; of what is only listed, tools too, by most hosts."""
    return having > 0 if one.need is Need.RUNTIME else 2 * having > hosts


def environment(facts: Facts) -> dict[str, str]:
    """Return what markers ask for, as it is on that host (PEP 508)."""
    python, implementation = facts.python.version, facts.python.implementation
    return {
        "implementation_name": implementation,
        "implementation_version": python,
        "os_name": "posix",
        "platform_machine": facts.machine,
        "platform_python_implementation": IMPLEMENTATIONS.get(implementation, implementation),
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": python,
        "python_version": ".".join(python.split(".")[:2]),
        "sys_platform": "linux",
        "extra": "",
    }


def _meant(packages: Sequence[Wanted], environment: Mapping[str, str]) -> list[Wanted]:
    """Return those meant for such a host; what cannot be told, such as of an extra, is not."""
    known = tuple(environment.items())
    return [one for one in packages if not one.marker or _true(one.marker, known)]


@functools.lru_cache(maxsize=4096)
def _true(marker: str, environment: tuple[tuple[str, str], ...]) -> bool:
    from packaging.markers import InvalidMarker, Marker, UndefinedEnvironmentName
    from packaging.version import InvalidVersion

    try:
        return Marker(marker).evaluate(dict(environment))
    except (InvalidMarker, UndefinedEnvironmentName, InvalidVersion, KeyError):
        return False


def _sort(host: _Seen, one: Wanted, common: str, *, usual: bool) -> None:
    version = host.version(one)
    if not version:
        sure = usual and one.need is not Need.INDIRECT
        like = host.facts.python.similar.get(one.name)
        (host.missing if sure and not like else host.doubtful).append(one)
    elif not _allowed(version, one.specifier):
        (host.excluded if usual else host.unwanted).append(one)
    elif one.locked and not any(_allowed(version, f"=={each}") for each in one.locked if each):
        host.unlike_lock.append(one)
    elif version != common:
        host.unlike_most.append((one, common))


@functools.lru_cache(maxsize=4096)
def _allowed(version: str, specifier: str) -> bool:
    """Whether a version is; one in a grammar of its own is not judged."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return True


def _said(case: Case, host: _Seen, count: int) -> Iterator[Finding]:
    name, source = host.node.name, case.wants.source
    # What no run of ours refuses for is no error: our own tasks need none of it.
    worst = Level.WARNING if case.spec.task.shipped else Level.ERROR
    if host.missing:
        what = f"{_list(one.name for one in host.missing)} missing, and named in {source}"
        yield Finding(worst, name, what, _cure(host, host.missing, source))
    for level, those in ((worst, host.excluded), (Level.WARNING, host.unwanted)):
        if those:
            versions = (f"{one.name} {host.version(one)}" for one in those)
            asked = (f"{one.name}{one.specifier}" for one in those)
            what = f"{', '.join(versions)}, and {_asks(source)} {', '.join(asked)}"
            yield Finding(level, name, what, _cure(host, those, source))
    if host.doubtful:
        shown = ", ".join(_with_similar(one, host) for one in host.doubtful)
        what = f"not found, though {source} names them: {shown}"
        yield Finding(Level.WARNING, name, what, _cure(host, host.doubtful, source))
    if host.unlike_lock:
        versions = (f"{one.name} {host.version(one)}" for one in host.unlike_lock)
        locked = (f"{one.name} {' or '.join(one.locked)}" for one in host.unlike_lock)
        what = f"{', '.join(versions)}; {source} has {', '.join(locked)}"
        yield Finding(Level.WARNING, name, what, _cure(host, host.unlike_lock, source))
    if host.unlike_most:
        versions = (f"{one.name} {host.version(one)}" for one, _ in host.unlike_most)
        others = (f"{one.name} {common}" for one, common in host.unlike_most)
        what = f"{', '.join(versions)}; most have {', '.join(others)}"
        pinned = {one.name: common for one, common in host.unlike_most}
        hint = _install(host, [f"{name}=={version}" for name, version in pinned.items()])
        yield Finding(Level.WARNING, name, what, hint)
    if count and not (host.missing or host.excluded or host.unwanted or host.doubtful):
        yield Finding(Level.FINE, name, f"{count} named in {source}, all there")


def _asks(source: str) -> str:
    return (
        "pyproject.toml asks for" if source.endswith((".lock", ".toml")) else f"{source} asks for"
    )


def _with_similar(one: Wanted, host: _Seen) -> str:
    like = host.facts.python.similar.get(one.name)
    return f"{one.name} (but {like})" if like else one.name


def _list(names: Iterator[str]) -> str:
    unique = list(dict.fromkeys(names))
    return f"{', '.join(unique)} {'is' if len(unique) == 1 else 'are'}"


def _cure(host: _Seen, those: list[Wanted], source: str) -> str:
    if len(those) > FEW and source.endswith(".txt"):
        return _install(host, ["-r", source])
    asked: Mapping[str, str] = {
        one.name: f"{one.name}=={one.locked[0]}"
        if len(one.locked) == 1
        else one.name + one.specifier
        for one in those
    }
    return _install(host, list(asked.values()))


def _install(host: _Seen, words: list[str]) -> str:
    argv = [host.facts.python.executable, "-m", "pip", "install", *words]
    return f"there: {shell.line(argv)}\nor leave this out: check.skip=[packages]"
