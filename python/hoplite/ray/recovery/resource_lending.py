"""A task that waits for a lost argument lends its resources to the task that rebuilds the argument.

Ray starts a task when its arguments are there, and Hoplite's arguments are handles. So a task may have
started when bytes are lost. While it waits, Ray frees only its CPUs. The other task may need the same GPU or
custom resource, and both would wait for ever. The waiting function has not begun, and needs none yet.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import ray
from ray._private import worker
from ray._private.worker import Worker, global_worker
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

__all__ = ["Lender", "Waiter", "lender_here", "lent_options"]

DEVICES = "CUDA_VISIBLE_DEVICES"
"""The variable in which Ray says which GPUs a task has."""

TOGETHER = ("label_selector", "_labels", "fallback_strategy")
"""Options that choose among nodes, and that exclude other choices."""


class Lender(NamedTuple):
    """A task that waits for an argument."""

    task: str
    """Its task id, in hex."""
    node: str
    """The Ray node where it runs, in hex."""
    resources: Mapping[str, float]
    """The resources it holds, by Ray's names."""
    devices: str | None
    """The GPUs among them, if Ray tells."""


class Waiter(NamedTuple):
    """A thread that waits for an object."""

    thread: int
    task: ray.TaskID

    @classmethod
    def here(cls) -> Waiter:
        """The calling thread. Of other threads, the current task is not known."""
        return cls(threading.get_ident(), global_worker.current_task_id)

    def lender(self) -> Lender | None:
        """The task or actor that this thread runs, if it waits to begin."""
        actor = global_worker.actor_id
        begins = actor.is_nil() or self.task == ray.TaskID.for_actor_creation_task(actor)
        if global_worker.mode != ray.WORKER_MODE or not begins or not self._unpickles_arguments():
            return None
        context = ray.get_runtime_context()
        resources = context.get_assigned_resources()
        if actor.is_nil():
            # Ray has taken the CPUs back while it waits.
            resources.pop("CPU", None)
        return Lender(self.task.hex(), context.get_node_id(), resources, os.environ.get(DEVICES))

    def _unpickles_arguments(self) -> bool:
        """Whether the thread unpickles arguments, and no value for a function that has begun. Ray does both
        on the main thread."""
        if self.thread != threading.main_thread().ident:
            return False
        frame = sys._current_frames().get(self.thread)
        while frame is not None:
            if frame.f_code.co_name == Worker.get_objects.__name__ and frame.f_globals is worker.__dict__:
                return False
            frame = frame.f_back
        return True


def lender_here() -> Lender | None:
    """The task or actor that the calling thread runs, if it waits to begin."""
    return Waiter.here().lender()


def lent_options(options: Mapping[str, Any], lender: Lender) -> tuple[dict[str, Any], dict[str, str]] | None:
    """The options and environment of a task that runs on resources of `lender` instead of its own.

    None if the task needs nothing that the lender holds, or cannot run there.
    """
    needed = {**(options.get("resources") or {}), "GPU": options.get("num_gpus")}
    needed["memory"] = options.get("memory")
    if accelerator := options.get("accelerator_type"):
        needed[f"accelerator_type:{accelerator}"] = 0.001
    needed = {name: amount for name, amount in needed.items() if amount}
    held = all(amount <= lender.resources.get(name, 0) for name, amount in needed.items())
    if not needed or not held or _runs_elsewhere(options, lender):
        return None
    free: dict[str, Any] = {"resources": None, "num_gpus": None, "memory": None, "accelerator_type": None}
    if lender.resources.get("CPU"):
        free["num_cpus"] = 0
    there = NodeAffinitySchedulingStrategy(lender.node, soft=False)
    environment = {DEVICES: lender.devices} if "GPU" in needed and lender.devices is not None else {}
    return {**options, **free, "scheduling_strategy": there}, environment


def _runs_elsewhere(options: Mapping[str, Any], lender: Lender) -> bool:
    """Whether the options choose another place already, besides the resources."""
    strategy = options.get("scheduling_strategy")
    if isinstance(strategy, NodeAffinitySchedulingStrategy):
        return bool(strategy.node_id != lender.node)
    in_group = options.get("placement_group") not in (None, "default")
    return in_group or strategy not in (None, "DEFAULT", "SPREAD") or any(map(options.get, TOGETHER))
