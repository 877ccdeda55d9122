"""Whether the packages that the project names are there, in versions that it allows."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from runner.checks.context import CheckContext, most_common
from runner.core import shell
from runner.core.model.facts import Facts
from runner.core.model.finding import Finding, Level
from runner.core.model.packages import Certainty, PackageRequirement
from runner.core.model.spec import Node
from runner.core.planning.readiness import needs_python

MAX_INLINE = 6
"""More packages are not written out in a command, but read from a file."""

IMPLEMENTATIONS = {"cpython": "CPython", "pypy": "PyPy"}


@dataclass
class _HostPackages:
    """What is to be said of one host."""

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

    def has(self, requirement: PackageRequirement) -> bool:
        version = self.version(requirement)
        return bool(version) and _is_allowed(version, requirement.specifier)


def packages(context: CheckContext) -> Iterator[Finding]:
    """An error where a host lacks what others have; what none has, or a version, is a warning.

    A file names more than a program needs, and hosts have more than their metadata tell: only that
    one host is worse than the others is sure enough to refuse a launch for.
    """
    if not needs_python(context.spec.task):
        return
    known = [entry for entry in context.ready if entry[1].python.packages is not None]
    hosts = [_HostPackages(node, facts) for node, facts in known]
    applicable = {
        host.node.name: _applicable(context.requirements.packages, environment(host.facts))
        for host in hosts
    }
    hosts_having = {
        requirement: [host for host in hosts if host.has(requirement)]
        for requirement in context.requirements.packages
    }
    common = {
        requirement.name: most_common(
            {h.node.name: h.version(requirement) for h in hosts if h.version(requirement)}
        )
        for requirement in context.requirements.packages
    }
    for host in hosts:
        for requirement in applicable[host.node.name]:
            _classify(
                host,
                requirement,
                common[requirement.name],
                is_usual=_is_usual(requirement, len(hosts_having[requirement]), len(hosts)),
            )
        yield from _host_findings(
            context, host, len({requirement.name for requirement in applicable[host.node.name]})
        )


def _is_usual(requirement: PackageRequirement, having: int, hosts: int) -> bool:
    """Whether to have it is the rule here; of what is only listed, tools too, by most hosts."""
    return having > 0 if requirement.certainty is Certainty.RUNTIME else 2 * having > hosts


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


def _applicable(
    packages: Sequence[PackageRequirement], environment: Mapping[str, str]
) -> list[PackageRequirement]:
    """Return those meant for such a host; what cannot be told, such as of an extra, is not."""
    known = tuple(environment.items())
    return [
        requirement
        for requirement in packages
        if not requirement.marker or _marker_holds(requirement.marker, known)
    ]


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
        _is_allowed(version, f"=={locked_version}")
        for locked_version in requirement.locked
        if locked_version
    ):
        host.not_as_locked.append(requirement)
    elif version != common:
        host.not_as_most.append((requirement, common))


@functools.lru_cache(maxsize=4096)
def _is_allowed(version: str, specifier: str) -> bool:
    """Whether a version is; one in a grammar of its own is not judged."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except (InvalidSpecifier, InvalidVersion):
        return True


def _host_findings(context: CheckContext, host: _HostPackages, count: int) -> Iterator[Finding]:
    name, source = host.node.name, context.requirements.source
    # What no run of ours refuses for is no error: our own tasks need none of it.
    worst_level = Level.WARNING if context.spec.task.shipped_file else Level.ERROR
    if host.missing:
        message = f"{_names_text(requirement.name for requirement in host.missing)} missing, and named in {source}"
        yield Finding(worst_level, name, message, _install_hint(host, host.missing, source))
    for level, affected in (
        (worst_level, host.wrong_version),
        (Level.WARNING, host.maybe_wrong_version),
    ):
        if affected:
            versions = (
                f"{requirement.name} {host.version(requirement)}" for requirement in affected
            )
            specs = (f"{requirement.name}{requirement.specifier}" for requirement in affected)
            message = f"{', '.join(versions)}, and {_source_text(source)} {', '.join(specs)}"
            yield Finding(level, name, message, _install_hint(host, affected, source))
    if host.maybe_missing:
        shown = ", ".join(_with_similar(requirement, host) for requirement in host.maybe_missing)
        message = f"not found, though {source} names them: {shown}"
        yield Finding(Level.WARNING, name, message, _install_hint(host, host.maybe_missing, source))
    if host.not_as_locked:
        versions = (
            f"{requirement.name} {host.version(requirement)}" for requirement in host.not_as_locked
        )
        locked = (
            f"{requirement.name} {' or '.join(requirement.locked)}"
            for requirement in host.not_as_locked
        )
        message = f"{', '.join(versions)}; {source} has {', '.join(locked)}"
        yield Finding(Level.WARNING, name, message, _install_hint(host, host.not_as_locked, source))
    if host.not_as_most:
        versions = (
            f"{requirement.name} {host.version(requirement)}" for requirement, _ in host.not_as_most
        )
        others = (f"{requirement.name} {common}" for requirement, common in host.not_as_most)
        message = f"{', '.join(versions)}; most have {', '.join(others)}"
        pinned = {requirement.name: common for requirement, common in host.not_as_most}
        hint = _pip_install(host, [f"{name}=={version}" for name, version in pinned.items()])
        yield Finding(Level.WARNING, name, message, hint)
    if count and not (
        host.missing or host.wrong_version or host.maybe_wrong_version or host.maybe_missing
    ):
        yield Finding(Level.OK, name, f"{count} named in {source}, all there")


def _source_text(source: str) -> str:
    return (
        "pyproject.toml asks for" if source.endswith((".lock", ".toml")) else f"{source} asks for"
    )


def _with_similar(requirement: PackageRequirement, host: _HostPackages) -> str:
    similar = host.facts.python.substitutes.get(requirement.name)
    return f"{requirement.name} (but {similar})" if similar else requirement.name


def _names_text(names: Iterator[str]) -> str:
    unique = list(dict.fromkeys(names))
    return f"{', '.join(unique)} {'is' if len(unique) == 1 else 'are'}"


def _install_hint(host: _HostPackages, affected: list[PackageRequirement], source: str) -> str:
    if len(affected) > MAX_INLINE and source.endswith(".txt"):
        return _pip_install(host, ["-r", source])
    specs: Mapping[str, str] = {
        requirement.name: f"{requirement.name}=={requirement.locked[0]}"
        if len(requirement.locked) == 1
        else requirement.name + requirement.specifier
        for requirement in affected
    }
    return _pip_install(host, list(specs.values()))


def _pip_install(host: _HostPackages, specs: list[str]) -> str:
    argv = [host.facts.python.executable, "-m", "pip", "install", *specs]
    return f"there: {shell.line(argv)}\nor leave this out: skip_checks=[packages]"
