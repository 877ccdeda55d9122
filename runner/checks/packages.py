"""Python packages that the project names, in the versions it allows."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from runner.checks.context import CheckContext, most_common
from runner.core import shell
from runner.core.model.facts import Facts
from runner.core.model.finding import Finding, Level
from runner.core.model.packages import Certainty, PackageRequirement
from runner.core.model.spec import Node
from runner.core.planning.readiness import needs_python

MAX_INLINE = 6
"""With more packages than this, a command reads them from the file."""

IMPLEMENTATIONS = {"cpython": "CPython", "pypy": "PyPy"}


@dataclass
class _HostPackages:
    """The packages of one host, sorted by what is wrong with them."""

    node: Node
    facts: Facts
    missing: list[PackageRequirement] = field(default_factory=list)
    maybe_missing: list[PackageRequirement] = field(default_factory=list)
    wrong_version: list[PackageRequirement] = field(default_factory=list)
    maybe_wrong_version: list[PackageRequirement] = field(default_factory=list)
    not_as_locked: list[PackageRequirement] = field(default_factory=list)
    not_as_most: list[tuple[PackageRequirement, str]] = field(default_factory=list)

    def version(self, requirement: PackageRequirement) -> str:
        return (self.facts.python.packages or {}).get(requirement.name, "")

    def versions(self, requirements: Iterable[PackageRequirement]) -> str:
        return ", ".join(f"{each.name} {self.version(each)}" for each in requirements)

    def has(self, requirement: PackageRequirement) -> bool:
        version = self.version(requirement)
        return bool(version) and _is_allowed(version, requirement.specifier)


def packages(context: CheckContext) -> Iterator[Finding]:
    """Report an error where a host lacks what others have; warn of everything less certain.

    A requirements file names more than a program needs, and hosts have more than their metadata
    shows: only a host that is worse than the others is certain enough to refuse a launch for.
    """
    if not needs_python(context.spec.task):
        return
    known = [entry for entry in context.ready if entry[1].python.packages is not None]
    hosts = [_HostPackages(node, facts) for node, facts in known]
    named = context.requirements.packages
    owners = {each: [host for host in hosts if host.has(each)] for each in named}
    common = {
        each.name: most_common({h.node.name: h.version(each) for h in hosts if h.version(each)})
        for each in named
    }
    for host in hosts:
        applicable = _applicable(named, environment(host.facts))
        for each in applicable:
            is_usual = _is_usual(each, len(owners[each]), len(hosts))
            _classify(host, each, common[each.name], is_usual=is_usual)
        yield from _host_findings(context, host, len({each.name for each in applicable}))


def _is_usual(requirement: PackageRequirement, having: int, hosts: int) -> bool:
    """Return whether hosts should have it: one that is only listed must be on most of them."""
    return having > 0 if requirement.certainty is Certainty.RUNTIME else 2 * having > hosts


def environment(facts: Facts) -> dict[str, str]:
    """Return the values of environment markers on a host (PEP 508)."""
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


def _applicable(
    packages: Sequence[PackageRequirement], environment: Mapping[str, str]
) -> list[PackageRequirement]:
    """Return the requirements for such a host; those with an undecidable marker are left out."""
    known = tuple(environment.items())
    return [each for each in packages if not each.marker or _marker_holds(each.marker, known)]


@functools.lru_cache(maxsize=4096)
def _marker_holds(marker: str, environment: tuple[tuple[str, str], ...]) -> bool:
    from packaging.markers import InvalidMarker, Marker, UndefinedEnvironmentName
    from packaging.version import InvalidVersion

    try:
        return Marker(marker).evaluate(dict(environment))
    except (InvalidMarker, UndefinedEnvironmentName, InvalidVersion, KeyError):
        return False


def _classify(
    host: _HostPackages, requirement: PackageRequirement, common: str, *, is_usual: bool
) -> None:
    version = host.version(requirement)
    if not version:
        is_sure = is_usual and requirement.certainty is not Certainty.INDIRECT
        similar = host.facts.python.substitutes.get(requirement.name)
        (host.missing if is_sure and not similar else host.maybe_missing).append(requirement)
    elif not _is_allowed(version, requirement.specifier):
        (host.wrong_version if is_usual else host.maybe_wrong_version).append(requirement)
    elif requirement.locked and not any(
        _is_allowed(version, f"=={locked}") for locked in requirement.locked if locked
    ):
        host.not_as_locked.append(requirement)
    elif version != common:
        host.not_as_most.append((requirement, common))


@functools.lru_cache(maxsize=4096)
def _is_allowed(version: str, specifier: str) -> bool:
    """Return whether a specifier allows a version; true for what is not in their grammar."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return True


def _host_findings(context: CheckContext, host: _HostPackages, count: int) -> Iterator[Finding]:
    name, source = host.node.name, context.requirements.source
    # Shipped tasks need none of the project's packages, so a launch of one does not refuse.
    worst_level = Level.WARNING if context.spec.task.shipped_file else Level.ERROR
    if host.missing:
        names = list(dict.fromkeys(each.name for each in host.missing))
        verb = "is" if len(names) == 1 else "are"
        message = f"{', '.join(names)} {verb} missing, and named in {source}"
        yield Finding(worst_level, name, message, _install_hint(host, host.missing, source))
    for level, affected in (
        (worst_level, host.wrong_version),
        (Level.WARNING, host.maybe_wrong_version),
    ):
        if affected:
            specs = ", ".join(f"{each.name}{each.specifier}" for each in affected)
            message = f"{host.versions(affected)}, and {_source_text(source)} {specs}"
            yield Finding(level, name, message, _install_hint(host, affected, source))
    if host.maybe_missing:
        shown = ", ".join(_with_similar(each, host) for each in host.maybe_missing)
        message = f"not found, though {source} names them: {shown}"
        yield Finding(Level.WARNING, name, message, _install_hint(host, host.maybe_missing, source))
    if affected := host.not_as_locked:
        locked = ", ".join(f"{each.name} {' or '.join(each.locked)}" for each in affected)
        message = f"{host.versions(affected)}; {source} has {locked}"
        yield Finding(Level.WARNING, name, message, _install_hint(host, affected, source))
    if host.not_as_most:
        others = ", ".join(f"{each.name} {common}" for each, common in host.not_as_most)
        message = f"{host.versions(each for each, _ in host.not_as_most)}; most have {others}"
        pinned = {each.name: common for each, common in host.not_as_most}
        hint = _pip_install(host, [f"{name}=={version}" for name, version in pinned.items()])
        yield Finding(Level.WARNING, name, message, hint)
    if count and not (
        host.missing or host.wrong_version or host.maybe_wrong_version or host.maybe_missing
    ):
        yield Finding(Level.OK, name, f"all {count} packages named in {source}")


def _source_text(source: str) -> str:
    return f"{'pyproject.toml' if source.endswith(('.lock', '.toml')) else source} asks for"


def _with_similar(requirement: PackageRequirement, host: _HostPackages) -> str:
    similar = host.facts.python.substitutes.get(requirement.name)
    return f"{requirement.name} (but {similar})" if similar else requirement.name


def _install_hint(host: _HostPackages, affected: Sequence[PackageRequirement], source: str) -> str:
    if len(affected) > MAX_INLINE and source.endswith(".txt"):
        return _pip_install(host, ["-r", source])
    specs = {
        each.name: f"=={each.locked[0]}" if len(each.locked) == 1 else each.specifier
        for each in affected
    }
    return _pip_install(host, [name + spec for name, spec in specs.items()])


def _pip_install(host: _HostPackages, specs: list[str]) -> str:
    argv = [host.facts.python.executable, "-m", "pip", "install", *specs]
    return f"there: {shell.line(argv)}\nor skip this check: skip_checks=[packages]"
