"""Settings that all processes of a Ray job share. Hoplite's own are part of the job's runtime environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from ray._private.state import state

from hoplite.errors import BadArgument

__all__ = [
    "LINEAGE_BYTES_MAX",
    "PACKAGE_PREFIX",
    "SPACE_TIMEOUT",
    "THRESHOLD_DEFAULT",
    "THRESHOLD_VARIABLE",
    "TRANSPARENT_VARIABLE",
    "LineageSettings",
    "lineage_settings",
    "lineage_settings_of",
    "threshold",
]

PACKAGE_PREFIX = f"{__package__}."
"""Prefix of the names of this package's modules."""

THRESHOLD_DEFAULT = 1 << 20
"""Least bytes of a value that goes through Hoplite. docs/decisions/0012-hoplite-on-ray.md explains the
number."""

SPACE_TIMEOUT = 1.0
"""Seconds that a put waits for space in the store. Then the value goes through Ray, which can spill to
disk."""

THRESHOLD_VARIABLE = "HOPLITE_RAY_THRESHOLD"
TRANSPARENT_VARIABLE = "HOPLITE_RAY_TRANSPARENT"

LINEAGE_BYTES_MAX = 1 << 30
"""Most bytes of remembered tasks: Ray's default. Beyond that, the oldest are forgotten."""


class LineageSettings(NamedTuple):
    """Ray's settings of how it remembers tasks."""

    is_enabled: bool
    bytes_max: int


def lineage_settings() -> LineageSettings:
    """The lineage settings of the Ray cluster that this process is connected to."""
    return lineage_settings_of(state.get_system_config(), os.environ)


def lineage_settings_of(config: Mapping[str, Any], environment: Mapping[str, str]) -> LineageSettings:
    """The lineage settings. The cluster's `config` overrides this process's `environment`, as in Ray."""

    def setting(name: str, default: str) -> str:
        return str(config.get(name, environment.get(f"RAY_{name}", default))).lower()

    is_enabled = setting("lineage_pinning_enabled", "true") in ("true", "1")
    return LineageSettings(is_enabled, int(setting("max_lineage_bytes", str(LINEAGE_BYTES_MAX))))


def threshold() -> int:
    """Least bytes of a value that goes through Hoplite."""
    text = os.environ.get(THRESHOLD_VARIABLE, "")
    if not text:
        return THRESHOLD_DEFAULT
    if not text.isdigit():
        raise BadArgument(f"${THRESHOLD_VARIABLE} is bytes, a whole number; not {text!r}")
    return int(text)
