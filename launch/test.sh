#!/usr/bin/env bash
# Runs lint, type checks and tests, in an environment that it creates: launch/test.sh [PYTEST ARGUMENT ...]
#
#   launch/test.sh -m 'slow or not slow'  also slow tests: several processes, kills, real compilers
#   launch/test.sh tests/model -k cache   only some tests
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
make_environment dev
cd "$repository"

failed=()
check() {
    local name=$1
    shift
    printf '\n== %s\n' "$name"
    "$@" || failed+=("$name")
}

# Types are checked by one process, while tests run.
types=$(mktemp)
"$python" -m mypy >"$types" 2>&1 &
mypy=$!
trap 'kill "$mypy" 2>/dev/null || true; rm -f "$types"' EXIT
show_types() {
    local status=0
    wait "$mypy" || status=$?
    cat "$types"
    return "$status"
}

check "lint" "$python" -m ruff check .
check "format" "$python" -m ruff format --check .
check "tests" "$python" -m pytest --numprocesses=auto --maxprocesses=4 --dist=loadfile "$@"
check "types" show_types

if ((${#failed[@]})); then
    echo "FAILED in $SECONDS s: ${failed[*]}"
    exit 1
fi
echo "PASSED in $SECONDS s: lint, format, types, tests"
