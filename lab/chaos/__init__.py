"""Chaos: real nodes in network namespaces, a seeded workload, and faults while it runs.

``make chaos MINUTES=5`` (as root). The modules, in the order of a run:

- ``plan``, ``draw``, ``draw_faults``, ``contents``: draw a round from a seed, and the content of its objects
- ``nodes``, ``crew``, ``client``: the daemons, and the client processes with their calls
- ``workload``, ``faults``: start and retry operations; inject faults and heal them
- ``judge``: decides which outcomes the faults explain
- ``reckoning``: checks what must hold after the healing
- ``run``, ``story``: the main loop, and its reports
"""
