"""Checkout: the private copy of a release that a run's ranks work in."""

from __future__ import annotations

import os

from runner.core.protocol.paths import CODE_FOLDER, release_folder
from runner.host.process.job_queue import Steps
from runner.host.storage.reflink import copy_file
from runner.host.storage.release_store import BYTES_PER_STEP, MANIFEST, is_sealed, load_manifest


def check_out(workdir: str, name: str, target: str) -> Steps:
    """Make a private copy of a release in the empty folder `target`.

    Raises:
        ValueError: The release is not here, or was modified since it was stored.
        OSError: The copy cannot be written.
    """
    root = release_folder(workdir, name)
    manifest = load_manifest(root)
    if manifest is None:
        raise ValueError(f"release {name} is no longer in {workdir}")
    os.utime(os.path.join(root, MANIFEST))  # those used last are kept longest
    code = os.path.join(root, CODE_FOLDER)
    for folder in manifest.folders:
        os.mkdir(os.path.join(target, folder.path), 0o700)
    copied = 0
    for file in manifest.files:
        copied += 4096
        source = os.path.join(code, file.path)
        if not is_sealed(source, file):
            raise ValueError(f"{source} was modified since it was stored; start again to push it")
        for count in copy_file(source, os.path.join(target, file.path), file.mode):
            copied += count
            if copied > BYTES_PER_STEP:
                copied = 0
                yield
    for link in manifest.links:
        os.symlink(link.target, os.path.join(target, link.path))
    for folder in reversed(manifest.folders):
        os.chmod(os.path.join(target, folder.path), folder.mode)
