"""Chaos: real nodes in network namespaces, a seeded workload, and faults while it runs.

``make chaos MINUTES=5`` (as root). The modules, in the order of a run:

- ``plan``, ``generator``, ``fault_generator``, ``contents``: a round from a seed, its objects' content
- ``nodes``, ``members``, ``client``: the daemons, and the client processes with their calls
- ``workload``, ``faults``: start and retry operations; inject faults and heal them
- ``judge``: decides which outcomes the faults explain
- ``final_checks``: checks what must hold after the healing
- ``run``, ``diagnostics``: the main loop, and its reports
"""
