#!/usr/bin/env bash
# Install what is missing of the system's part: a Rust toolchain, a C linker, iproute2 for the
# network-namespace tests. Says what it does; does nothing where everything is there.
set -euo pipefail

missing=()
command -v cc >/dev/null || missing+=(gcc libc6-dev)
command -v ip >/dev/null || missing+=(iproute2)
python3 -c 'import ensurepip' 2>/dev/null || missing+=(python3-venv)
command -v cargo >/dev/null || command -v curl >/dev/null || missing+=(curl ca-certificates)

((${#missing[@]} == 0)) || "${0%/*}/packages.sh" "${missing[@]}"

if ! command -v cargo >/dev/null; then
    echo "installing a Rust toolchain with rustup" >&2
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal -c rustfmt -c clippy
fi
