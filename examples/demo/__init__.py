"""The whole of Hoplite in one go, on a 4-node cluster on this machine: `python -m examples.demo`.

__main__   the command line and the order of the acts
stage      what the acts share: the cluster, a client per node, processes, the display
machine    what this machine can copy, measured
broadcast  act 1: a file from one node to the others
reduction  act 2: four arrays become one
training   act 3: asynchronous SGD, the server's side
worker     act 3: a process that computes gradients
network    the small neural network it trains
"""
