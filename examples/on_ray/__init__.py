"""Applications on Ray with Hoplite, each beside its twin on Ray alone: `NAME.py` and `NAME_plain.py`.

`python -m examples.on_ray.async_sgd`, say, runs on one machine in seconds; `--address` runs it on a cluster
of Ray nodes. `python -m examples.on_ray.differences` counts the lines in which the twins differ.
"""
