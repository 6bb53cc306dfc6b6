"""Chaos: real nodes in network namespaces, a seeded workload, and faults while it runs.

``make chaos MINUTES=5`` (as root). In the order of a run:

- ``plan``, ``draw``, ``draw_faults``, ``contents``: what a seed makes of a round, and what is in an object
- ``nodes``, ``crew``, ``client``: the daemons, and the client processes with the calls they make
- ``workload``, ``faults``: operations begun and tried again; things broken and mended
- ``judge``: which outcomes the faults explain
- ``reckoning``: what must hold after the healing
- ``run``, ``story``: the loop, and what is told of it
"""
