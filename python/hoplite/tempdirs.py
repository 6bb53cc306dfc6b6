"""Temporary directories in /tmp. If the owner of one dies, the next process that makes one removes it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

__all__ = ["OwnedTempdir"]

ROOT = Path("/tmp")
"""Not $TMPDIR, as that path may be long: a socket's path may have 107 bytes at most."""

PREFIX = "hoplite-cluster-"

LOCK = "owner.lock"


class OwnedTempdir:
    """A new folder, locked while this process lives. Folders of dead owners are removed first.

    A process id in the name would not do instead of a lock. Ids are used again, and in containers that
    share /tmp one id means different processes.
    """

    def __init__(self) -> None:
        for folder in ROOT.glob(PREFIX + "*"):
            _remove_if_stale(folder)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=ROOT))
        # Lock the file before it gets its name, so other processes never find it unlocked while we live.
        unnamed = self.path / (LOCK + ".new")
        self._lock = os.open(unnamed, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unnamed.rename(self.path / LOCK)

    def remove(self) -> None:
        """Remove the folder and its contents. A second call does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _remove_if_stale(folder: Path) -> None:
    # Folders that others leave in /tmp may be broken in any way. Ignore all such errors.
    with contextlib.suppress(OSError):
        if folder.lstat().st_uid != os.geteuid():
            return
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
