#!/usr/bin/env bash
# Install what is missing of the peers that come as Debian packages: both MPI libraries, side by side,
# and iperf3, which finds the limits. Says what it does; does nothing where everything is there.
set -euo pipefail

missing=()
command -v mpirun.openmpi >/dev/null || missing+=(openmpi-bin)
command -v mpirun.mpich >/dev/null || missing+=(mpich)
command -v iperf3 >/dev/null || missing+=(iperf3)

if ((${#missing[@]})); then
    run=()
    [[ $(id -u) == 0 ]] || run=(sudo)
    if ! command -v apt-get >/dev/null; then
        echo "please install: ${missing[*]} (this system has no apt-get)" >&2
        exit 1
    fi
    echo "installing ${missing[*]}" >&2
    "${run[@]}" apt-get update -qq
    DEBIAN_FRONTEND=noninteractive "${run[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
fi
