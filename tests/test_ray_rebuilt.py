"""Hoplite rebuilds whatever Ray rebuilds. The node with the only copy dies in a cluster with one CPU.

All tests share one cluster, which declares nodes dead after two seconds of silence.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("ray")
from ray_cluster import TIMEOUT
from test_ray_misuse import printed_by

CLUSTER = """
import os, re, signal, tempfile, threading, time
import numpy as np, pytest, ray, hoplite.ray
from hoplite.ray.recovery import calls, lineage
from hoplite.ray.values import handles
from hoplite.ray.recovery.loss_reports import Loss, open_losses, report
from ray.cluster_utils import Cluster

cluster = Cluster()
cluster.add_node(
    num_cpus=0,
    resources={"head": 1},
    include_dashboard=False,
    _system_config={
        "health_check_initial_delay_ms": 5000,
        "health_check_period_ms": 100,
        "health_check_failure_threshold": 20,
        "object_timeout_milliseconds": 200,
    },
)
hoplite.ray.init(address=cluster.address, log_to_driver=False)
NODE = dict(num_cpus=1, resources={"worker": 9, "special": 1}, object_store_memory=100_000_000)
node = cluster.add_node(**NODE)
cluster.wait_for_nodes()

def lose_the_node():
    "Another takes its place."
    cluster.remove_node(node, allow_graceful=False)
    add_a_node()

def add_a_node():
    global node
    node = cluster.add_node(**NODE)

@ray.remote(max_retries=1)
def large():
    return np.zeros(10_000_000, np.uint8)

@ray.remote
def more(array):
    return array + 1

@ray.remote
def first_of(array):
    return int(array[0])

def read(*references):
    "By tasks, so that this process has no copies."
    return ray.get([first_of.remote(reference) for reference in references], timeout=60)

class Asker:
    "On the first node."
    def ask(self):
        return 7

class Maker:
    def make(self, value):
        return np.full(10_000_000, value, np.uint8)
"""

CASES = """
def of_a_result_twice_whose_task_may_run_again_once():
    result = large.remote()
    assert read(result) == [0]
    lose_the_node()
    assert read(result) == [0]
    lose_the_node()
    for use in (lambda: read(result), lambda: ray.get(result, timeout=60)):
        with pytest.raises(ray.exceptions.ObjectReconstructionFailedError, match="MAX_ATTEMPTS_EXCEEDED"):
            use()

def of_results_of_one_argument():
    argument = large.remote()
    results = [more.remote(argument) for _ in range(4)]
    assert read(*results) == [1] * 4
    lose_the_node()
    assert read(*results) == [1] * 4

def of_what_was_made_of_what_was_put_and_is_not_referred_to():
    put = ray.put(np.ones(10_000_000, np.uint8))
    result = more.remote(put)
    assert read(result) == [2]
    del put
    lose_the_node()
    assert read(result) == [2]

def of_what_nobody_can_make_now():
    result = large.remote()
    assert read(result) == [0]
    cluster.remove_node(node, allow_graceful=False)
    # Its Hoplite node may live a moment longer.
    while len(hoplite.ray.nodes()) > 1:
        time.sleep(0.1)
    began = time.monotonic()
    with pytest.raises(ray.exceptions.GetTimeoutError):
        ray.get(result, timeout=2)
    assert time.monotonic() - began < 4
    add_a_node()
    assert ray.get(result, timeout=60)[0] == 0

def of_what_nobody_waits_for():
    def noted(folder):
        os.close(tempfile.mkstemp(dir=folder)[0])
        return {"in a dict": [np.ones(10_000_000, np.uint8)]}

    @ray.remote
    def yielded(folder):
        yield noted(folder)
        yield noted(folder)

    with tempfile.TemporaryDirectory() as folder:
        results = [ray.remote(noted).remote(folder), hoplite.ray.remote(noted).remote(folder)]
        results += list(yielded.remote(folder))
        # Code that takes the value for one of Ray's would read this as sizes of its parts.
        plain = ray.remote(lambda: np.array([7, 0, 1_700_000_000_000_000_000, 5]).tobytes()).remote()
        forgotten = ray.remote(noted).remote(folder)
        ray.wait([*results, forgotten], num_returns=5, fetch_local=False)
        del forgotten
        lose_the_node()
        deadline = time.monotonic() + 30
        while len(os.listdir(folder)) < 9 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(ray.get(plain)) == 32
        for result in results:
            assert ray.get(result, timeout=60)["in a dict"][0][0] == 1
        assert len(os.listdir(folder)) == 9

def of_what_only_a_call_that_waits_refers_to():
    @ray.remote(max_retries=0)
    def sleep():
        time.sleep(1000)

    @ray.remote
    def note(array, path):
        with open(path, "w") as file:
            file.write(str(int(array[0])))

    with tempfile.TemporaryDirectory() as folder:
        result = large.remote()
        ray.wait([result])
        sleep.remote()
        note.remote(result, f"{folder}/noted")
        del result
        # The task would be forgotten by then.
        time.sleep(3)
        lose_the_node()
        while not os.path.exists(f"{folder}/noted") or not open(f"{folder}/noted").read():
            time.sleep(0.1)

def of_an_argument_that_holds_an_actor():
    asker = ray.remote(num_cpus=0, resources={"head": 1})(Asker).remote()

    @ray.remote
    def asked(actors):
        return np.full(10_000_000, ray.get(actors[0].ask.remote()), np.uint8)

    result = asked.remote([asker])
    assert read(result) == [7]
    del asker
    lose_the_node()
    assert read(result) == [7]

def of_a_chain_whose_reader_holds_what_all_of_it_needs():
    special = {"resources": {"special": 1}}
    result = large.options(**special).remote()
    chain = [result, more.options(**special).remote(result)]
    special_first_of = first_of.options(**special)
    assert ray.get(special_first_of.remote(chain[-1])) == 1
    lose_the_node()
    assert ray.get(special_first_of.remote(chain[-1]), timeout=60) == 1

def of_what_a_worker_has_put_again_that_dies_before_it_says_so():
    @ray.remote(max_retries=3)
    def second_run_dies(folder):
        runs = os.listdir(folder)
        open(f"{folder}/{len(runs)}", "w").close()
        if len(runs) == 1:
            put = calls._put

            def put_and_die(value, id):
                put(value, id)
                os._exit(1)

            calls._put = put_and_die
        return np.full(10_000_000, 5, np.uint8)

    with tempfile.TemporaryDirectory() as folder:
        result = second_run_dies.remote(folder)
        assert read(result) == [5]
        lose_the_node()
        assert read(result) == [5]
        while len(os.listdir(folder)) < 3 or open_losses():
            time.sleep(0.1)
        # Ray tells the owner of a guard late that the process has died.
        time.sleep(3)
        assert read(result) == [5]

def of_a_task_that_may_not_run_again():
    result = large.options(max_retries=0).remote()
    assert read(result) == [0]
    lose_the_node()
    with pytest.raises(ray.exceptions.ObjectReconstructionFailedError, match="RETRIES_DISABLED"):
        read(result)

def of_what_an_actor_returned_whose_methods_are_retried():
    options = dict(num_cpus=0, resources={"worker": 1}, max_restarts=-1, max_task_retries=-1)
    maker = ray.remote(**options)(Maker).remote()
    result = maker.make.remote(7)
    assert read(result) == [7]
    for _ in range(2):
        lose_the_node()
        assert read(result) == [7]
"""

MORE_CASES = """
def of_what_is_waited_for_until_somebody_loses_patience():
    result = large.remote()
    assert read(result) == [0]
    cluster.remove_node(node, allow_graceful=False)
    here = dict(num_cpus=0, resources={"head": 0.1})
    for force in (False, True):
        reader = first_of.options(**here, max_retries=0).remote(result)
        assert ray.wait([reader], timeout=5) == ([], [reader])
        ray.cancel(reader, force=force)
        with pytest.raises((ray.exceptions.TaskCancelledError, ray.exceptions.WorkerCrashedError)):
            ray.get(reader, timeout=20)
    began = time.monotonic()
    threading.Timer(2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        ray.get(result, timeout=60)
    assert time.monotonic() - began < 5
    holder = ray.remote(**here)(Maker).remote()
    call = holder.make.remote(result)
    with pytest.raises(ray.exceptions.GetTimeoutError):
        ray.get(call, timeout=1)
    add_a_node()
    assert ray.get(result, timeout=60)[0] == 0
    assert ray.get(call, timeout=60)[0] == 0

def of_what_was_yielded():
    @ray.remote(max_retries=2)
    def numbers():
        for n in range(3):
            yield {name: np.full(5_000_000, by * n, np.uint8) for by, name in ((1, "number"), (2, "twice"))}

    @ray.remote
    def both(value):
        return int(value["number"][0]), int(value["twice"][0])

    for options in ({}, {"num_returns": "dynamic"}):
        items = numbers.options(**options).remote()
        items = list(ray.get(items) if options else items)
        lose_the_node()
        assert ray.get([both.remote(item) for item in items], timeout=60) == [(0, 0), (1, 2), (2, 4)]

def of_a_chain_whose_end_alone_is_referred_to():
    result = large.remote()
    for _ in range(8):
        result = more.remote(result)
    assert read(result) == [8]
    lose_the_node()
    assert read(result) == [8]

def of_the_end_of_a_chain_from_what_was_put():
    put = ray.put(np.ones(10_000_000, np.uint8))
    between = more.remote(put)
    result = more.remote(between)
    assert read(result) == [3]
    task = between.task_id().hex()
    while lineage.known(task).is_large is None:
        time.sleep(0.1)
    del put, between
    while lineage.known(task) is not None:
        time.sleep(0.1)
    lose_the_node()
    assert read(result) == [3]

def of_several_values_of_a_task_that_may_run_again_once():
    @ray.remote(max_retries=1)
    def several():
        return [np.full(2_000_000, number, np.uint8) for number in range(3)]

    @ray.remote
    def firsts_of(arrays):
        return [int(array[0]) for array in arrays]

    result = several.remote()
    assert ray.get(firsts_of.remote(result)) == [0, 1, 2]
    lose_the_node()
    assert ray.get(firsts_of.remote(result), timeout=60) == [0, 1, 2]

def of_what_is_made_again_and_reported_late():
    result = large.options(max_retries=2).remote()
    assert read(result) == [0]
    lose_the_node()
    assert read(result) == [0]
    with handles.kept_as_handles() as found:
        ray.get(result)
    for _ in range(2):
        # The task may run again once more: then it is asked whether the object is there.
        report(Loss(found[0].origin, found[0].guard.hex()), certain=True)
        while open_losses():
            time.sleep(0.1)
    assert read(result) == [0]

def of_an_argument_of_an_actor_that_holds_what_its_task_needs():
    class Reader:
        def __init__(self, array):
            self.first = int(array[0])

        def read(self):
            return self.first

    result = large.options(resources={"special": 1}).remote()
    assert read(result) == [0]
    lose_the_node()
    options = dict(num_cpus=1, resources={"special": 1}, max_restarts=-1, max_task_retries=-1)
    reader = ray.remote(**options)(Reader).remote(result)
    assert ray.get(reader.read.remote(), timeout=60) == 0
    ray.kill(reader)

def of_what_raises_the_second_time():
    @ray.remote
    def once(folder):
        os.mkdir(f"{folder}/run")
        return np.zeros(10_000_000, np.uint8)

    with tempfile.TemporaryDirectory() as folder:
        result = once.remote(folder)
        assert read(result) == [0]
        lose_the_node()
        for use in (lambda: ray.get(result, timeout=60), lambda: read(result)):
            with pytest.raises(FileExistsError, match="run") as raised:
                use()
            assert isinstance(raised.value, ray.exceptions.RayTaskError)

def of_what_is_something_else_the_second_time():
    @ray.remote
    def grows(folder):
        runs = len(os.listdir(folder))
        open(f"{folder}/{runs}", "w").close()
        return np.zeros(10_000_000 + runs, np.uint8)

    with tempfile.TemporaryDirectory() as folder:
        result = grows.remote(folder)
        assert read(result) == [0]
        lose_the_node()
        returned = re.escape("grows has run again, and returned |u1(10000001,) in place of |u1(10000000,)")
        for use in (lambda: read(result), lambda: ray.get(result, timeout=60)):
            with pytest.raises(ray.exceptions.ObjectLostError, match=returned):
                use()

def of_what_another_actor_returned():
    maker = ray.remote(num_cpus=0, resources={"worker": 1}, max_restarts=-1)(Maker).remote()
    result = maker.make.remote(7)
    assert read(result) == [7]
    lose_the_node()
    with pytest.raises(ray.exceptions.ObjectLostError):
        ray.get(result, timeout=60)

def of_a_task_whose_caller_has_died():
    @ray.remote(num_cpus=0, max_restarts=0)
    class Caller:
        def result(self):
            return [large.remote()]

    caller = Caller.remote()
    (result,) = ray.get(caller.result.remote())
    assert read(result) == [0]
    ray.kill(caller)
    lose_the_node()
    with pytest.raises(ray.exceptions.OwnerDiedError):
        ray.get(result, timeout=60)
"""

ALL = """
for case in [case for name, case in list(globals().items()) if name.startswith("of_")]:
    began = time.monotonic()
    case()
    print(f"{case.__name__}: {time.monotonic() - began:.1f} s")
"""


@pytest.mark.parametrize(
    "cases", [CASES, pytest.param(MORE_CASES, marks=pytest.mark.thorough)], ids=["some", "more"]
)
def test_lost_values_are_rebuilt(cases: str, tmp_path: Path) -> None:
    expected = re.findall(r"^def (of_\w+)", cases, re.MULTILINE)
    # Each case starts a cluster of its own.
    printed = printed_by(CLUSTER + cases + ALL, tmp_path, timeout=4 * TIMEOUT)
    assert re.findall(r"^(of_\w+): [\d.]+ s$", printed, re.MULTILINE) == expected, printed
