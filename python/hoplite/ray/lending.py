"""What a task holds while it waits for an argument is lent to the task that makes the argument again.

Ray starts a task when its arguments have come. Ours come as handles, so a task may have started when bytes
are lost. It gives back its processors, and nothing else. What the making needs besides (a GPU, a resource of
the user's) may be all that there is: both would wait for ever. But the function that waits has not begun, and
uses none of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import ray
from ray._private.worker import global_worker
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

__all__ = ["Lender", "lender_here", "lent"]

DEVICES = "CUDA_VISIBLE_DEVICES"
"""Where Ray says which GPUs a task has."""

TOGETHER = ("label_selector", "_labels", "fallback_strategy")
"""Options that choose among nodes, and go with no other choice."""


class Lender(NamedTuple):
    """A task that waits for an argument."""

    task: str
    """Its id, in hex."""
    node: str
    """Of Ray's, where it runs, in hex."""
    resources: Mapping[str, float]
    """What it holds, by Ray's names."""
    devices: str
    """The GPUs among them."""


def lender_here() -> Lender:
    """The task that this process runs, and whose arguments are being unpickled."""
    context = ray.get_runtime_context()
    resources = context.get_assigned_resources()
    if global_worker.actor_id.is_nil():
        # Given back while it waits.
        resources.pop("CPU", None)
    return Lender(
        global_worker.current_task_id.hex(), context.get_node_id(), resources, os.environ.get(DEVICES, "")
    )


def lent(options: Mapping[str, Any], lender: Lender) -> tuple[dict[str, Any], dict[str, str]] | None:
    """The options, and the environment, of a task that runs on what `lender` holds instead of what it needs.

    None if it needs nothing that is held, or cannot run there.
    """
    needed = {**(options.get("resources") or {}), "GPU": options.get("num_gpus")}
    needed["memory"] = options.get("memory")
    if accelerator := options.get("accelerator_type"):
        needed[f"accelerator_type:{accelerator}"] = 0.001
    needed = {name: amount for name, amount in needed.items() if amount}
    held = all(amount <= lender.resources.get(name, 0) for name, amount in needed.items())
    strategy = options.get("scheduling_strategy")
    if isinstance(strategy, NodeAffinitySchedulingStrategy):
        strategy = None if strategy.node_id == lender.node else strategy
    elsewhere = strategy not in (None, "DEFAULT", "SPREAD") or any(map(options.get, TOGETHER))
    if not needed or not held or elsewhere:
        return None
    free: dict[str, Any] = {"resources": None, "num_gpus": None, "memory": None, "accelerator_type": None}
    if lender.resources.get("CPU"):
        free["num_cpus"] = 0
    there = NodeAffinitySchedulingStrategy(lender.node, soft=False)
    environment = {DEVICES: lender.devices} if "GPU" in needed else {}
    return {**options, **free, "scheduling_strategy": there}, environment
