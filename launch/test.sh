#!/usr/bin/env bash
# Runs lint, type checks and tests, in an environment that it creates: launch/test.sh [PYTEST ARGUMENT ...]
#
#   launch/test.sh -m 'slow or not slow'  also slow tests: several processes, kills, real compilers
#   launch/test.sh tests/model -k cache   only some tests
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
make_environment requirements-dev.txt
cd "$repository"

failed=()
check() {
    local name=$1
    shift
    printf '\n== %s\n' "$name"
    "$python" -m "$@" || failed+=("$name")
}

check "lint" ruff check .
check "format" ruff format --check .
check "types" mypy
check "tests" pytest --numprocesses=auto --maxprocesses=4 --dist=loadfile "$@"

if ((${#failed[@]})); then
    echo "FAILED in $SECONDS s: ${failed[*]}"
    exit 1
fi
echo "PASSED in $SECONDS s: lint, format, types, tests"
