#!/usr/bin/env bash
# From a fresh clone to translations in five and a half to ten minutes: launch/quickstart.sh [RUN [FLAG ...]]
#
# Creates an environment, trains on the built-in English-German phrasebook, evaluates on sentences
# that the model has never seen, and translates. It also translates once with the first checkpoint,
# while training goes on, and stops training if that fails. RUN is the run directory (default:
# runs/quickstart), FLAG a flag of t2t.train. The same command again continues a stopped run.
#
# T2T_EXTRAS=cuda (or tpu) installs JAX for GPUs (or TPUs).
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

[[ ${1:-} != -* ]] || fail "RUN comes before the flags: $0 [RUN [FLAG ...]]"
[[ ${1:-} != *://* ]] || fail "RUN is a local folder; into a bucket train with python -m t2t.train"
run=${1:-$repository/runs/quickstart}
[[ $run == /* ]] || run=$PWD/$run
[[ $run != *,* ]] || fail "RUN may not contain a comma, which separates runs of an ensemble: $run"
shift $(($# > 0))
cd "$repository"
make_environment "${T2T_EXTRAS:-}"
set_memory

# translate COUNT [FLAG ...]: prints COUNT unseen sentences with their translations and references.
translate() {
    local pairs sources translations
    pairs=$("$python" -c '
import sys
from t2t.data.phrasebook import read_pairs
for english, german in read_pairs("test")[: 80 * int(sys.argv[1]) : 80]:
    print(english, german, sep="\t")' "$1") || return
    sources=$(cut -f 1 <<<"$pairs")
    translations=$("$python" -m t2t.translate --workdir="$run" "${@:2}" <<<"$sources") || return
    paste <(cat <<<"$sources") <(cat <<<"$translations") <(cut -f 2 <<<"$pairs") |
        while IFS=$'\t' read -r source translation reference; do
            printf 'source       %s\ntranslation  %s\nreference    %s\n\n' \
                "$source" "$translation" "$reference"
        done
}

list_checkpoints() {
    find "$run/checkpoints" -maxdepth 1 -name '[0-9]*' ! -name '*[!0-9]*' 2>/dev/null
}

translate_first_checkpoint() {
    local found
    until [[ $(list_checkpoints) ]]; do sleep 1; done
    if found=$(translate 3 --checkpoint=last); then
        printf '\n\nTranslations by the first checkpoint, while training goes on:\n\n%s\n' "$found"
    else # training reads this file after its next checkpoint, and stops
        echo '{"reason": "launch/quickstart.sh could not translate with the first checkpoint"}' \
            >"$run/stop.json"
    fi
}

announce "Training"
helper=
if [[ ! $(list_checkpoints) ]]; then
    translate_first_checkpoint &
    helper=$!
    trap 'kill "$helper" 2>/dev/null || true' EXIT
fi
"$python" -m t2t.train --config=configs/quickstart.py --workdir="$run" "$@"
[[ ! $helper ]] || wait "$helper"

announce "Evaluation on unseen sentences"
"$python" -m t2t.evaluate --workdir="$run" --split=test

announce "Translations of unseen sentences by t2t.translate"
translate 5

announce "Done"
cat <<NEXT
Sentences of your own:  cd "$repository" && "$python" -m t2t.translate --workdir="$run"
Scores and curves:      $run/evaluations, $run/metrics.jsonl
Training on your text:  README.md, "Training on your own text"
NEXT
