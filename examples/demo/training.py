"""Act 3, the server: asynchronous SGD as in Figure 1b of the Hoplite paper.

Each step reduces the first half of the gradients to arrive, whoever they are from. Those workers
get the new weights and go on; the others' late gradients go into a later step. Nobody waits for
the slowest.
"""

from __future__ import annotations

import time
from collections import Counter

import hoplite
import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from examples.demo import network, worker
from examples.demo.stage import CALL_TIMEOUT, NODES, WORKERS, Stage

STEPS = 300
RATE = 0.25
MOMENTUM = 0.8
ACCURACY_MIN = 0.9
REPORT_STEPS = 10


class Server:
    """The weights, their versions, and which worker is computing on which."""

    def __init__(self, client: hoplite.Client) -> None:
        self._client = client
        self.weights = network.initial_weights()
        self._velocity = np.zeros_like(self.weights)
        self._version = 0
        self._turns = [0] * WORKERS
        self._on = [0] * WORKERS
        self._users = Counter({0: WORKERS})
        self._publish()
        for number in range(WORKERS):
            self._hand_out(number)

    def step(self) -> None:
        """Reduce the first half of the gradients under way, apply it, publish the new weights."""
        # The longest under way first: of several that wait, the late ones go in before the new ones.
        waiting = sorted(range(WORKERS), key=lambda w: self._on[w])
        under_way = {worker.gradient_name(w, self._turns[w]): w for w in waiting}
        target = f"step {self._version}"
        reduction = self._client.reduce(
            list(under_way), target=target, num_objects=WORKERS // 2, op="mean", timeout=CALL_TIMEOUT
        )
        mean = self._client.get(target, timeout=CALL_TIMEOUT)
        result = reduction.result(CALL_TIMEOUT)
        self._velocity = MOMENTUM * self._velocity + mean
        self.weights = self.weights - RATE * self._velocity
        self._version += 1
        self._publish()

        used = [str(source) for source in result.sources]
        done = [under_way[name] for name in used]
        finished = [target, *used, *(worker.task_name(w, self._turns[w]) for w in done)]
        finished += self._unused_weights(done)
        for w in done:
            self._turns[w] += 1
            self._hand_out(w)
        self._client.delete(finished, timeout=CALL_TIMEOUT)

    def stop(self) -> None:
        """Tell every worker to stop after the turn it is in, and delete what is left."""
        left = [worker.weights_name(self._version), *map(worker.weights_name, set(self._on))]
        for w in range(WORKERS):
            left += [worker.task_name(w, self._turns[w]), worker.gradient_name(w, self._turns[w])]
            self._client.put(np.int64(worker.STOP), worker.task_name(w, self._turns[w] + 1))
        self._client.wait(
            [worker.gradient_name(w, self._turns[w]) for w in range(WORKERS)], timeout=CALL_TIMEOUT
        )
        self._client.delete(left, timeout=CALL_TIMEOUT)

    def clear(self) -> None:
        """Delete the word to stop, once every worker has heard it."""
        self._client.delete([worker.task_name(w, self._turns[w] + 1) for w in range(WORKERS)])

    def _publish(self) -> None:
        self._client.put(self.weights, worker.weights_name(self._version), timeout=CALL_TIMEOUT)

    def _hand_out(self, number: int) -> None:
        self._on[number] = self._version
        task = worker.task_name(number, self._turns[number])
        self._client.put(np.int64(self._version), task, timeout=CALL_TIMEOUT)

    def _unused_weights(self, done: list[int]) -> list[str]:
        """Versions nobody will ask for again, now that `done` leave theirs for the new one."""
        for w in done:
            self._users[self._on[w]] -= 1
            self._users[self._version] += 1
        unused = [version for version, users in self._users.items() if users == 0]
        for version in unused:
            del self._users[version]
        return [worker.weights_name(version) for version in unused]


def perform(stage: Stage) -> None:
    """Train; raises if the accuracy on the test set stays at 90 % or below."""
    stage.console.rule(
        f"3  Asynchronous SGD: {WORKERS} workers on {NODES} nodes, {network.PARAMETERS:,} parameters"
    )
    data = network.digits()
    moved_before = stage.moved()
    server = Server(stage.clients[0])
    workers = [
        stage.processes.submit(worker.run, stage.cluster.sockets[w % NODES], w) for w in range(WORKERS)
    ]
    # The first step waits for the workers to start; what is measured begins after it.
    server.step()
    start = time.perf_counter()
    columns = (
        TextColumn("   step"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.fields[rate]:.0f} steps/s, test accuracy {task.fields[accuracy]:.1%}"),
    )
    with Progress(*columns, console=stage.console) as progress:
        bar = progress.add_task("training", total=STEPS, rate=0.0, accuracy=0.0)
        for step in range(1, STEPS + 1):
            server.step()
            if step % REPORT_STEPS == 0:
                rate = step / (time.perf_counter() - start)
                reached = network.accuracy(server.weights, data.test_x, data.test_y)
                progress.update(bar, completed=step, rate=rate, accuracy=reached)
    elapsed = time.perf_counter() - start
    server.stop()
    given = [future.result() for future in workers]
    server.clear()

    moved = stage.moved() - moved_before
    reached = network.accuracy(server.weights, data.test_x, data.test_y)
    stage.console.print(f"   {STEPS / elapsed:.1f} steps/s; gradients given by each worker: {given}")
    stage.console.print(
        f"   {moved / 2**20:.0f} MiB moved between nodes, {stage.of_machine(moved / elapsed)}"
    )
    stage.console.print(f"   final test accuracy [bold]{reached:.1%}[/bold]")
    if reached <= ACCURACY_MIN:
        raise AssertionError(f"the test accuracy is {reached:.1%}, not over {ACCURACY_MIN:.0%}")
