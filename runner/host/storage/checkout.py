"""The private copy of a release that a run's ranks work in."""

from __future__ import annotations

import os

from runner.core.protocol.paths import CODE, release_folder
from runner.host.process.job_queue import Steps
from runner.host.storage.reflink import copy_file
from runner.host.storage.release_store import MANIFEST, STEP, load, sealed


def check_out(workdir: str, name: str, work: str) -> Steps:
    """Make a private copy of a release in the empty folder `work`.

    Raises:
        ValueError: The release is not here, or no longer as it was stored.
        OSError: The copy cannot be written.
    """
    root = release_folder(workdir, name)
    manifest = load(root)
    if manifest is None:
        raise ValueError(f"there is no release {name} in {workdir} any more")
    os.utime(os.path.join(root, MANIFEST))  # those used last stay longest
    code = os.path.join(root, CODE)
    for folder in manifest.folders:
        os.mkdir(os.path.join(work, folder.path), 0o700)
    done = 0
    for file in manifest.files:
        done += 4096
        source = os.path.join(code, file.path)
        if not sealed(source, file):
            raise ValueError(f"{source} is no longer as it was stored; start again to push it anew")
        for count in copy_file(source, os.path.join(work, file.path), file.mode):
            done += count
            if done > STEP:
                done = 0
                yield
    for link in manifest.links:
        os.symlink(link.target, os.path.join(work, link.path))
    for folder in reversed(manifest.folders):
        os.chmod(os.path.join(work, folder.path), folder.mode)
