#!/usr/bin/env bash
# Install Debian packages: packages.sh NAME... Says what it does.
set -euo pipefail

run=()
[[ $(id -u) == 0 ]] || run=(sudo)
if ! command -v apt-get >/dev/null; then
    echo "please install: $* (this system has no apt-get)" >&2
    exit 1
fi
echo "installing $*" >&2
"${run[@]}" apt-get update -qq
"${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
