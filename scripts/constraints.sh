#!/usr/bin/env bash
# Resolves the package and its extra dev again for each supported Python: scripts/constraints.sh [PYTHON ...]
#
#   scripts/constraints.sh 3.14                only the newest versions for Python 3.14
#   UV_CONSTRAINT=scripts/constraints/python3.13.txt scripts/constraints.sh 3.14
#                                             for it the versions of another file
#
# The files:
#
#   scripts/constraints/python3.N.txt          the newest versions; the launchers install them
#   scripts/constraints/python3.11-oldest.txt  the lower end of each range; .ci/run tests them
#
# Needs uv (pip install uv). Before you commit the files, launch/quickstart.sh and launch/test.sh
# must pass with each of them; .ci/run covers the oldest and the newest.
set -euo pipefail
unset CDPATH

cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v uv >/dev/null || {
    echo "error: uv is missing; install it: pip install uv" >&2
    exit 1
}

resolve() {
    local python=$1 name=$2 resolution=$3 pins
    pins=$(uv pip compile --quiet --no-header --no-annotate --python-platform=x86_64-manylinux_2_28 \
        --python-version="$python" --resolution="$resolution" --extra=dev pyproject.toml)
    {
        echo "# Python $python, $resolution versions, resolved on $(date -u +%F) by scripts/constraints.sh"
        echo "$pins"
    } >"scripts/constraints/$name.txt"
    echo "scripts/constraints/$name.txt: $(wc -l <<<"$pins") packages"
}

if (($# == 0)); then
    resolve 3.11 python3.11-oldest lowest-direct
    set -- 3.11 3.12 3.13 3.14
fi
for python in "$@"; do
    resolve "$python" "python$python" highest
done
