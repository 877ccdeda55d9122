"""Image source: where the image that a launch brings to hosts comes from."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from runner.control.image.delivery import QUERY_TIMEOUT_S, ImageDelivery, Inventory, parse_inventory
from runner.control.image.saved_image import SavedImage
from runner.core.dataclass import dataclass
from runner.core.errors import ConfigError, Problem
from runner.core.model.container import ContainerSpec, ImageCommands
from runner.core.model.spec import LaunchRequest
from runner.core.planning.container.base import engine_of

if TYPE_CHECKING:
    from runner.control.image.build_context import BuildContext


@dataclass(frozen=True)
class BuiltImage:
    """An image that hosts build."""

    commands: ImageCommands
    context: BuildContext

    def deliver(self, delivery: ImageDelivery) -> None:
        """Have hosts build it."""
        with contextlib.closing(self.context):
            delivery.build(self.context)

    def close(self) -> None:
        """Remove what was made of it here."""
        self.context.close()


@dataclass(frozen=True)
class LocalImage:
    """An image of this machine."""

    commands: ImageCommands
    save: Callable[[], SavedImage]
    inventory: Inventory

    def deliver(self, delivery: ImageDelivery) -> None:
        """Send it to hosts."""
        delivery.push(self.inventory, self.save)

    def close(self) -> None:
        """Do nothing: it stays in the engine's store."""


ImageSource = BuiltImage | LocalImage


def open_image(request: LaunchRequest) -> tuple[LaunchRequest, ImageSource | None]:
    """Return the request with the name of its image, and the image if it comes from here.

    A run that is repeated has the image that was built for it, whatever the files are now.

    Raises:
        ConfigError: There is no such image or Dockerfile here.
    """
    container = request.spec.container
    if container.push_image:
        return request, _find_local(container)
    if not container.build:
        return request, None
    # Imported here, because most launches build no image, and pathspec takes its time.
    from runner.control.image.build_context import BuildContext  # noqa: PLC0415

    context: BuildContext | None = None
    try:
        context = BuildContext(Path(container.build), request.spec.deploy.max_mb)
    except ConfigError:
        if not request.recorded_image:
            raise
    image = request.recorded_image or (context.image if context else "")
    container = replace(container, image=image)
    notes = request.notes
    if context and context.image == image:
        source = BuiltImage(_commands(container, context.dockerfile), context)
    else:
        source = None
        if context:
            context.close()
        changed = f"the files of container.build are no longer those of {image}"
        notes = (*notes, f"{changed}, which that run had: hosts that still have it can be used")
    spec = replace(request.spec, container=container)
    return replace(request, spec=spec, notes=notes), source


def without_delivery(request: LaunchRequest) -> LaunchRequest:
    """Return the request with the name of its image, which no host gets: for a look at them."""
    if request.spec.container.build:
        request, source = open_image(request)
        if source:
            source.close()
    container = replace(request.spec.container, fetches=False)
    return replace(request, spec=replace(request.spec, container=container))


def _commands(container: ContainerSpec, dockerfile: str = "") -> ImageCommands:
    commands = engine_of(container).image_commands(container, dockerfile)
    assert commands is not None  # noqa: S101 (the configuration was checked)
    return commands


def _find_local(container: ContainerSpec) -> LocalImage:
    """Return an image of the engine on this machine."""
    key, image = "container.push_image", container.image
    program = next(filter(shutil.which, (container.program, container.engine)), "")
    if not program:
        message = f"there is no {container.engine} on this machine to send {image} from"
        raise ConfigError([Problem(key, message, "install it, or set container.push_image=false")])
    here = _commands(replace(container, program=program))
    try:
        done = subprocess.run(  # noqa: S603
            here.inventory, capture_output=True, text=True, timeout=QUERY_TIMEOUT_S, check=False
        )
        reason = (done.stderr.strip().splitlines() or [""])[-1] if done.returncode else ""
        inventory = parse_inventory(done.stdout)
    except subprocess.TimeoutExpired:
        reason, inventory = f"no answer within {QUERY_TIMEOUT_S:g} s", Inventory()
    if reason or not inventory.store:
        message = f"{container.engine} does not work on this machine: {reason}"
        raise ConfigError([Problem(key, message, f"try it: {program} version")])
    if not inventory.image:
        message = f"{container.engine} of this machine has no image {image}"
        hint = f"build or pull it here ({program} images lists those there are)"
        raise ConfigError([Problem(key, message, hint)])
    return LocalImage(_commands(container), lambda: SavedImage(here.save), inventory)
