"""Finds the daemon, `hoplited`."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from hoplite.errors import NodeUnreachable

__all__ = ["find_daemon"]

NAME = "hoplited"


def find_daemon() -> str:
    """The path of `hoplited`: the first of these.

    1. `$HOPLITED`, if it is set
    2. the daemon that is installed with this package
    3. the first on `$PATH`

    Raises `NodeUnreachable` if there is none.
    """
    chosen = os.environ.get("HOPLITED")
    if chosen:
        return chosen
    installed = [sysconfig.get_path("scripts"), str(Path(sys.executable).parent)]
    if sysconfig.get_preferred_scheme("user") in sysconfig.get_scheme_names():
        installed.append(sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user")))
    for folder in installed:
        path = shutil.which(NAME, path=folder)
        if path:
            return path
    path = shutil.which(NAME)
    if path:
        return path
    raise NodeUnreachable(
        f"{NAME} was found neither in {' nor in '.join(dict.fromkeys(installed))} nor on PATH;"
        " `pip install hoplite` brings it, and $HOPLITED may name it"
    )
