#!/usr/bin/env bash
# Install what is missing of the peers that come as Debian packages: both MPI libraries, side by side,
# and iperf3, which finds the limits. Says what it does; does nothing where everything is there.
set -euo pipefail

missing=()
command -v mpirun.openmpi >/dev/null || missing+=(openmpi-bin)
command -v mpirun.mpich >/dev/null || missing+=(mpich)
command -v iperf3 >/dev/null || missing+=(iperf3)

((${#missing[@]} == 0)) || "${0%/*}/packages.sh" "${missing[@]}"
