#!/usr/bin/env bash
# From a fresh clone to translations in about ten minutes: launch/quickstart.sh [RUN]
#
# Makes an environment, trains on the embedded English-German phrasebook, evaluates on sentences
# that the model has never seen, and translates. RUN is the run directory, runs/quickstart if not
# given. The same command again goes on where it was stopped.
#
# T2T_REQUIREMENTS=requirements-cuda.txt (or -tpu) installs JAX for other hardware than the CPU.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

run=${1:-$repository/runs/quickstart}
[[ $run == /* ]] || run=$PWD/$run
cd "$repository"
make_environment "${T2T_REQUIREMENTS:-requirements.txt}"

# Large pages for large buffers: training on a CPU is faster (README, "Flags of the runtime").
export GLIBC_TUNABLES=${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}

announce() {
    printf '\n== %s (%d:%02d)\n' "$1" $((SECONDS / 60)) $((SECONDS % 60))
}

announce "Training"
"$python" -m t2t.train --config=configs/quickstart.py --workdir="$run"

announce "Evaluation on unseen sentences"
"$python" -m t2t.evaluate --workdir="$run" --split=test

announce "Translations of unseen sentences by t2t.translate"
pairs=$("$python" -c '
from t2t.data.phrasebook import generate
for english, german in generate("test")[:400:80]:
    print(english, german, sep="\t")')
sources=$(cut -f 1 <<<"$pairs")
translations=$("$python" -m t2t.translate --workdir="$run" <<<"$sources")
paste <(cat <<<"$sources") <(cat <<<"$translations") <(cut -f 2 <<<"$pairs") |
    while IFS=$'\t' read -r source translation reference; do
        printf 'source       %s\ntranslation  %s\nreference    %s\n\n' \
            "$source" "$translation" "$reference"
    done

announce "Done"
cat <<NEXT
Sentences of your own:  cd "$repository" && "$python" -m t2t.translate --workdir="$run"
Scores and curves:      $run/evaluations, $run/metrics.jsonl
Training on your text:  README.md, "Training on your own text"
NEXT
