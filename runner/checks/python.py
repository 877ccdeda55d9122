"""Checks of the task's interpreter: Python, torch and what comes with it, and its packages."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace

from runner.checks.base import CheckContext, check, error, most_common, ok, warning
from runner.core import shell
from runner.core.dataclass import dataclass
from runner.core.model.facts import Facts, Interpreter
from runner.core.model.release import Certainty, PackageRequirement
from runner.core.model.results import Finding, Level
from runner.core.planning.readiness import NCCL_PACKAGES, needs_python, without_torch

MAX_INLINE = 6  # with more packages than this, a command reads them from the file
IMPLEMENTATIONS = {"cpython": "CPython", "pypy": "PyPy"}


@check(30, at_launch=True)
def python(context: CheckContext) -> Iterator[Finding]:
    """Report an error where there is none; warn of other versions and other login environments."""
    if not needs_python(context.spec.task):
        return
    for node, _ in context.ready:
        yield from context.unmet("python", node)
    pythons = {node.name: facts.python for node, facts in context.ready if not facts.python.error}
    common = most_common(info.version for info in pythons.values())
    for name, info in pythons.items():
        if _minor_version(info.version) == _minor_version(common):
            yield ok(name, f"{info.version}, {info.executable}")
        else:
            other = f"Python {info.version}, most have {common}"
            hint = "set cluster.python, for all or in cluster.setup, to the same version everywhere"
            yield warning(name, f"{other}: pickles may not be readable by both", hint)
    for node, facts in context.ready:
        own, login = facts.python, facts.login_python
        has_less = own.torch and not login.torch
        if own.prefix and login.prefix and own.prefix != login.prefix and not has_less:
            found = f"{context.spec.python} at {login.executable} ({_python_text(login)})"
            gets = f"the task gets {own.executable} ({_python_text(own)})"
            hint = f"to use that one: cluster.python={login.executable}"
            yield warning(node.name, f"a login shell finds {found}, {gets}", hint)


def _python_text(info: Interpreter) -> str:
    return f"Python {info.version}, {f'torch {info.torch}' if info.torch else 'no torch'}"


def _minor_version(version: str) -> list[str]:
    return version.partition("+")[0].split(".")[:2]


@check(40, at_launch=True)
def torch(context: CheckContext) -> Iterator[Finding]:
    """Report an error where torch is missing or of another minor version; else warn of differences.

    A program that torch does not launch may need no torch: then its lack is a warning. The NCCL
    that torch will load is not known for sure, as another package may have installed the one found.
    """
    if not needs_python(context.spec.task):  # it is unknown which Python the task uses, if any
        return
    for node, facts in context.ready:
        errors = context.unmet("torch", node)
        yield from errors
        for problem in () if errors else without_torch(node, facts):
            yield replace(Finding.from_problem(problem), level=Level.WARNING)
    pythons = {node.name: facts.python for node, facts in context.ready if facts.python.torch}
    versions = {name: _versions(info) for name, info in pythons.items()}
    common = {
        part: most_common(own[part] for own in versions.values() if own[part])
        for part in ("torch", "CUDA", "NCCL")
    }
    for name, info in pythons.items():
        own = versions[name]
        differing = [part for part in own if own[part] and own[part] != common[part]]
        if not differing:
            yield ok(name, _versions_text(own).partition(" ")[2])
            continue
        wanted = f"torch=={common['torch'].partition('+')[0]}"
        if differing == ["NCCL"]:
            wanted = f"{_nccl_distribution(info)}=={common['NCCL']}"
        hint = f"install the same version on every node: {info.executable} -m pip install {wanted}"
        if context.spec.container:
            hint = f"use an image with the same version on every node: one with {wanted}"
        others = _versions_text({part: common[part] for part in differing})
        others = others.partition(" ")[2] if differing[0] == "torch" else others
        message = f"{_versions_text({part: own[part] for part in differing})}, most have {others}"
        if differing == ["NCCL"]:
            message += ": NCCL refuses a peer of another version"
        if _minor_version(own["torch"]) != _minor_version(common["torch"]):
            yield error(name, f"{message}: they cannot work together", hint)
        else:
            yield warning(name, message, hint)


def _versions(info: Interpreter) -> dict[str, str]:
    """Return the versions that have to be equal; "" for an unknown one."""
    nccl = (info.packages or {}).get(_nccl_distribution(info), "")
    return {"torch": info.torch, "CUDA": info.torch_cuda, "NCCL": nccl}


def _nccl_distribution(info: Interpreter) -> str:
    """Return the distribution that holds NCCL; "" for none or several."""
    names = [name for name in NCCL_PACKAGES if name in (info.packages or {})]
    return names[0] if len(names) == 1 else ""


def _versions_text(parts: Mapping[str, str]) -> str:
    return ", ".join(f"{part} {version}" for part, version in parts.items() if version)


@dataclass
class _HostPackages:
    """The packages of one host, sorted by what is wrong with them."""

    name: str
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

    def add(self, requirement: PackageRequirement, common: str, *, is_usual: bool) -> None:
        """Sort a requirement in; most hosts have it in version `common`."""
        version = self.version(requirement)
        if not version:
            similar = self.facts.python.substitutes.get(requirement.name)
            is_sure = is_usual and requirement.certainty is not Certainty.INDIRECT and not similar
            (self.missing if is_sure else self.maybe_missing).append(requirement)
        elif not _is_allowed(version, requirement.specifier):
            (self.wrong_version if is_usual else self.maybe_wrong_version).append(requirement)
        elif requirement.locked and not any(
            _is_allowed(version, f"=={locked}") for locked in requirement.locked if locked
        ):
            self.not_as_locked.append(requirement)
        elif version != common:
            self.not_as_most.append((requirement, common))


@check(50, at_launch=True)
def packages(context: CheckContext) -> Iterator[Finding]:
    """Report an error where a host lacks what others have; warn of everything less certain.

    A requirements file names more than a program needs, and hosts have more than their metadata
    shows: only a host that is worse than the others is certain enough to refuse a launch for.
    """
    if not needs_python(context.spec.task):
        return
    known = [entry for entry in context.ready if entry[1].python.packages is not None]
    hosts = [_HostPackages(node.name, facts) for node, facts in known]
    named = context.requirements.packages
    common, usual = {}, {}
    for each in named:
        versions = [version for version in (host.version(each) for host in hosts) if version]
        common[each] = most_common(versions)
        count = sum(_is_allowed(version, each.specifier) for version in versions)
        # One that is only listed must be on most hosts.
        least = 0 if each.certainty is Certainty.RUNTIME else len(hosts) / 2
        usual[each] = count > least
    for host in hosts:
        values = tuple(environment(host.facts).items())
        applicable = [one for one in named if not one.marker or _marker_holds(one.marker, values)]
        for each in applicable:
            host.add(each, common[each], is_usual=usual[each])
        yield from _host_findings(context, host, len({each.name for each in applicable}))


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


@functools.lru_cache(maxsize=4096)
def _marker_holds(marker: str, environment: tuple[tuple[str, str], ...]) -> bool:
    from packaging.markers import InvalidMarker, Marker, UndefinedEnvironmentName
    from packaging.version import InvalidVersion

    try:
        return Marker(marker).evaluate(dict(environment))
    except (InvalidMarker, UndefinedEnvironmentName, InvalidVersion, KeyError):
        return False


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
    name, source = host.name, context.requirements.source
    # Shipped tasks need none of the project's packages, so a launch of one does not refuse.
    worst_level = Level.WARNING if context.spec.task.shipped_file else Level.ERROR
    if host.missing:
        names = list(dict.fromkeys(each.name for each in host.missing))
        verb = "is" if len(names) == 1 else "are"
        message = f"{', '.join(names)} {verb} missing, and named in {source}"
        yield Finding(worst_level, name, message, _install_hint(host, host.missing, source))
    wrong = ((worst_level, host.wrong_version), (Level.WARNING, host.maybe_wrong_version))
    for level, affected in wrong:
        if affected:
            specs = ", ".join(f"{each.name}{each.specifier}" for each in affected)
            place = "pyproject.toml" if source.endswith((".lock", ".toml")) else source
            message = f"{host.versions(affected)}, and {place} asks for {specs}"
            yield Finding(level, name, message, _install_hint(host, affected, source))
    if host.maybe_missing:
        similar = host.facts.python.substitutes
        names = [each.name for each in host.maybe_missing]
        shown = ", ".join(f"{n} (but {similar[n]})" if n in similar else n for n in names)
        message = f"not found, though {source} names them: {shown}"
        yield warning(name, message, _install_hint(host, host.maybe_missing, source))
    if affected := host.not_as_locked:
        locked = ", ".join(f"{each.name} {' or '.join(each.locked)}" for each in affected)
        message = f"{host.versions(affected)}; {source} has {locked}"
        yield warning(name, message, _install_hint(host, affected, source))
    if host.not_as_most:
        others = ", ".join(f"{each.name} {common}" for each, common in host.not_as_most)
        message = f"{host.versions(each for each, _ in host.not_as_most)}; most have {others}"
        pinned = {each.name: common for each, common in host.not_as_most}
        hint = _pip_install(host, [f"{name}=={version}" for name, version in pinned.items()])
        yield warning(name, message, hint)
    absent = host.missing or host.maybe_missing
    if count and not (absent or host.wrong_version or host.maybe_wrong_version):
        yield ok(name, f"all {count} packages named in {source}")


def _install_hint(host: _HostPackages, affected: Sequence[PackageRequirement], source: str) -> str:
    if len(affected) > MAX_INLINE and source.endswith(".txt"):
        return _pip_install(host, ["-r", source])
    specs: dict[str, str] = {}
    for each in affected:
        specs[each.name] = f"=={each.locked[0]}" if len(each.locked) == 1 else each.specifier
    return _pip_install(host, [name + spec for name, spec in specs.items()])


def _pip_install(host: _HostPackages, specs: list[str]) -> str:
    argv = [host.facts.python.executable, "-m", "pip", "install", *specs]
    return f"there: {shell.line(argv)}\nor skip this check: skip_checks=[packages]"
