#!/usr/bin/env bash
# Calls SkyPilot with the last commit as the working directory of its task:
#
#   launch/sky.sh jobs launch launch/sky/tpu.yaml [FLAG ...]
#
# SkyPilot alone would ship files that git does not track, too. The machines have no .git; runs read the
# commit from REVISION, where `git archive` writes it.
set -euo pipefail
unset CDPATH
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 2
}

command -v sky >/dev/null || fail "SkyPilot is not installed: uv tool install 'skypilot[gcp]' (docs/clouds.md)"
[[ $(git rev-parse --show-toplevel 2>/dev/null) == "$(pwd -P)" ]] ||
    fail "$PWD is no git checkout; only what is committed is shipped"
[[ ! $(git status --porcelain --untracked-files=no) ]] ||
    fail "these changes are not committed, and only what is committed is shipped:
$(git status --short --untracked-files=no)"

commit=$(git rev-parse HEAD)
tree=$HOME/.cache/t2t/sky/$commit
if [[ ! -d $tree ]]; then
    mkdir -p "$tree.part"
    git archive "$commit" | tar -x -C "$tree.part"
    mv "$tree.part" "$tree" # last, so that an interrupted one is made again
fi
exec sky "$@" --workdir="$tree"
