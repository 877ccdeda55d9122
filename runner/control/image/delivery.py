"""Image delivery: hosts that lack the image of a run build it, or are sent it, before their facts.

Each store of images gets it once; hosts that share one wait for the first of them.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from runner.control.image.saved_image import ByteStream, SavedImage, has_zstd
from runner.control.remote_exec import Feed, OutputSink, RemoteCommand
from runner.control.rpc.session import HostSession, Inbox
from runner.control.rpc.wait import WaitLoop
from runner.core import shell
from runner.core.dataclass import dataclass
from runner.core.errors import SIGNAL_EXIT_BASE, Interrupted, NotReady, Problem
from runner.core.model.container import ContainerSpec, ImageCommands
from runner.core.model.results import CommandResult
from runner.core.text import join_some

if TYPE_CHECKING:
    from runner.control.image.build_context import BuildContext

QUERY_TIMEOUT_S = 60.0
ROOM_PER_BYTE = 2.2
"""How many bytes an engine needs for each of an archive: while it loads, it has both."""

SHA256 = "sha256:"  # what some engines put before an id
MAX_TAIL = 2000  # bytes
MAX_DIGITS = 18  # of a number of KiB
LAYER_MISSING = ("no such file", "not found")
"""What engines say of an archive that lacks a layer which they have after all not."""

MB = 1_000_000


@dataclass(frozen=True)
class Inventory:
    """What a store of images has; see `ImageCommands.inventory`."""

    store: str = ""
    free_bytes: int | None = None
    image: str = ""
    layers: tuple[tuple[str, ...], ...] = ()
    has_zstd: bool = False


def parse_inventory(text: str) -> Inventory:
    """Return what an inventory printed, without the lines that are not of its form."""
    values: dict[str, list[str]] = defaultdict(list)
    for line in text.splitlines():
        name, is_value, value = line.partition("=")
        if is_value:
            values[name].append(value.strip())
    first = {name: each[0] for name, each in values.items()}
    free = first.get("free", "")
    layers = []
    for line in values["layers"]:
        try:
            listed = json.loads(line)
        except (ValueError, RecursionError):
            continue
        layers.append(tuple(map(str, listed)) if isinstance(listed, list) else ())
    return Inventory(
        store=first.get("store", ""),
        free_bytes=int(free) << 10 if free.isdecimal() and len(free) < MAX_DIGITS else None,
        image=first.get("image", ""),
        layers=tuple(layers),
        has_zstd="zstd" in first,
    )


class ImageDelivery:
    """The delivery of one image to some hosts; `say` shows a message, `show` a node's state."""

    def __init__(
        self,
        container: ContainerSpec,
        commands: ImageCommands,
        sessions: Mapping[str, HostSession],
        inbox: Inbox,
        *,
        nodes: Collection[str],
        say: Callable[[str], None],
        show: Callable[[str, str], None],
        output: OutputSink,
        is_full: Callable[[], bool],
    ) -> None:
        self._container, self._commands = container, commands
        self._tails: dict[str, bytes] = defaultdict(bytes)  # of output that was shown
        self._stores: set[str] = set()  # that have got it, or are about to
        self._sessions, self._inbox, self._nodes = sessions, inbox, nodes
        self._say, self._show, self._output, self._is_full = say, show, output, is_full

    def build(self, context: BuildContext) -> None:
        """Have every host that lacks the image build it; raise NotReady if one cannot.

        With `pull: always` every host builds it: the engine knows what has not changed.
        """
        always = self._container.pull == "always"
        while lacking := self._lacking(lambda found: bool(found.image) and not always):
            self._show_all(lacking, "building")
            stream = ByteStream(context.file)
            feed = Feed(frozenset(lacking), stream.gzip(), stream)
            results = self._run(self._commands.build, lacking, [feed], live=True)
            self._check_results("container.build", results, "what it printed is above")
            self._say(f"image {context.image}: built on {join_some([*lacking])}")

    def push(self, local: Inventory, save: Callable[[], SavedImage]) -> None:
        """Send the image to every host that lacks it; raise NotReady if one cannot take it."""

        def has_it(found: Inventory) -> bool:
            return found.image.removeprefix(SHA256) == local.image.removeprefix(SHA256)

        lacking = self._lacking(has_it)
        if not lacking:
            return
        with contextlib.closing(save()) as saved:
            _Meanwhile(self._sessions, self._inbox, saved, self._show).wait()
            saved.check()
            while lacking:
                self._push_to(lacking, saved)
                lacking = self._lacking(has_it)

    def _push_to(self, lacking: Mapping[str, Inventory], saved: SavedImage) -> None:
        known = {
            name: saved.known_layers(each.layers) if self._commands.loads_new_layers else 0
            for name, each in lacking.items()
        }
        results = self._load(saved, lacking, known)
        errors = {n: results[n].stderr.decode(errors="replace") for n in known if known[n]}
        whole = {n: 0 for n in errors if any(text in errors[n] for text in LAYER_MISSING)}
        results.update(self._load(saved, lacking, whole) if whole else {})
        self._check_results("container.push_image", results, "its disk may be full")

    def _load(
        self, saved: SavedImage, lacking: Mapping[str, Inventory], known: Mapping[str, int]
    ) -> dict[str, CommandResult]:
        """Send the archive, each host without the layers that it knows."""
        groups: dict[int, list[str]] = defaultdict(list)
        for name, count in known.items():
            groups[count].append(name)
        by_zstd = has_zstd() and all(lacking[name].has_zstd for name in known)
        load = self._commands.load
        argv = ("/bin/sh", "-c", f"zstd -dc | {shell.line(load)}") if by_zstd else load
        streams = {count: saved.stream(count) for count in groups}
        self._check_room(lacking, {name: streams[known[name]].size for name in known})
        feeds = []
        for count, names in groups.items():
            stream = streams[count]
            chunks = stream.zstd() if by_zstd else stream.gzip()
            feeds.append(Feed(frozenset(names), chunks, stream))
        started = time.monotonic()
        results = self._run(argv, known, feeds)
        seconds = time.monotonic() - started
        for count, names in groups.items():
            loaded = [name for name in names if results[name].exit_code == 0]
            size = f"{streams[count].size / MB:.1f} of {saved.size / MB:.1f} MB"
            if loaded:
                image = self._container.image
                self._say(f"image {image}: {size} sent to {join_some(loaded)} in {seconds:.1f} s")
        return results

    def _lacking(self, has_image: Callable[[Inventory], bool]) -> dict[str, Inventory]:
        """Return a host of each store that lacks the image.

        A host whose engine does not answer any more is left to its facts, which say more.
        """
        results = self._run(self._commands.inventory, self._nodes, limit_s=QUERY_TIMEOUT_S)
        by_store: dict[str, tuple[str, Inventory]] = {}
        for name, result in results.items():
            if result.exit_code == 0:
                found = parse_inventory(result.stdout.decode(errors="replace"))
                store = found.store or name
                has_new = found.image and store in self._stores
                if not has_new and not has_image(found):
                    by_store.setdefault(store, (name, found))
        if still_lacking := [name for s, (name, _) in by_store.items() if s in self._stores]:
            message = f"{self._container.image} was brought to it, and is not there"
            raise NotReady([Problem(name, message) for name in still_lacking])
        self._stores |= by_store.keys()
        return dict(by_store.values())

    def _check_room(self, lacking: Mapping[str, Inventory], sizes: Mapping[str, int]) -> None:
        """Raise NotReady with every host on which an archive of so many bytes has no room."""
        free = {name: lacking[name].free_bytes for name in sizes}
        needed = {name: int(ROOM_PER_BYTE * size) for name, size in sizes.items()}
        problems = [
            Problem(
                name,
                f"container.push_image: its store of images has {left / MB:.0f} MB left, and "
                f"{self._container.image} needs {needed[name] / MB:.0f} MB while it is loaded",
                f"remove images there: {self._container.program} image prune",
            )
            for name, left in free.items()
            if left is not None and left < needed[name]
        ]
        if problems:
            raise NotReady(problems)

    def _run(
        self,
        argv: Sequence[str],
        names: Collection[str],
        feeds: Sequence[Feed] = (),
        *,
        limit_s: float | None = None,
        live: bool = False,
    ) -> dict[str, CommandResult]:
        """Run a command on some of the hosts, and stay in touch with all."""
        command = RemoteCommand(self._sessions, self._inbox, show=self._show)
        if live:
            command.stream_to(self._show_output, self._is_full)
        limit_s = limit_s or self._container.prepare_timeout_s
        command.run(argv, limit_s, feeds, names)
        if command.received_signal:
            code = SIGNAL_EXIT_BASE + command.received_signal
            raise Interrupted(code, "interrupted; nothing was started")
        return command.results

    def _show_output(self, node: str, stream: str, data: bytes) -> None:
        self._output(node, stream, data)
        self._tails[node] = (self._tails[node] + data)[-MAX_TAIL:]

    def _show_all(self, names: Collection[str], text: str) -> None:
        for name in names:
            self._show(name, text)

    def _check_results(self, key: str, results: Mapping[str, CommandResult], hint: str) -> None:
        """Raise NotReady with how each command failed that did."""
        problems = []
        for name, result in results.items():
            if result.exit_code == 0 and not result.problem:
                continue
            output = self._tails[name] or bytes(result.stderr)
            lines = output.decode(errors="replace").strip().splitlines()
            reason = result.problem or f"it ended with {result.exit_code}"
            last_line = f": {lines[-1]}" if lines else ""
            problems.append(Problem(name, f"{key}: {reason}{last_line}", hint))
        if problems:
            raise NotReady(problems)


class _Meanwhile(WaitLoop):
    """A wait for an image to be saved here, in touch with the hosts."""

    interrupted_message = "interrupted; nothing was started"

    def __init__(
        self,
        sessions: Mapping[str, HostSession],
        inbox: Inbox,
        saved: SavedImage,
        show: Callable[[str, str], None],
    ) -> None:
        super().__init__(sessions, inbox, show=show)
        self._saved = saved

    def _pending(self) -> Collection[str]:
        return self.sessions.keys()

    def _owes_answer(self, name: str) -> bool:
        del name
        return False  # nothing was asked

    def _is_finished(self) -> bool:
        return self._saved.is_saved
