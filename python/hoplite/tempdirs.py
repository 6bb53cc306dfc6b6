"""Temporary directories in /tmp. If their process dies, the next process that makes one removes them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path

__all__ = ["OwnedTempdir"]

ROOT = Path("/tmp")
"""Whatever $TMPDIR says: a socket's path may be 107 bytes long at most."""

PREFIX = "hoplite-cluster-"

LOCK = "owner.lock"


class OwnedTempdir:
    """A new folder, locked while this process lives; those whose owners have died are removed first.

    A lock and not a process id in the name: ids are used again, and mean different processes in
    different containers that share /tmp.
    """

    def __init__(self) -> None:
        for folder in ROOT.glob(PREFIX + "*"):
            _remove_if_stale(folder)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=ROOT))
        # Locked before it has its name: nobody ever finds it unlocked while we live.
        unnamed = self.path / (LOCK + ".new")
        self._lock = os.open(unnamed, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unnamed.rename(self.path / LOCK)

    def remove(self) -> None:
        """Remove it with all that is in it. A second time does nothing."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _remove_if_stale(folder: Path) -> None:
    # Anything may be wrong with what others leave in /tmp, and none of it is our business.
    with contextlib.suppress(OSError):
        if folder.lstat().st_uid != os.geteuid():
            return
        lock = os.open(folder / LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
