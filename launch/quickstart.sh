#!/usr/bin/env bash
# From a fresh clone to translations in four to seven minutes: launch/quickstart.sh [RUN [FLAG ...]]
#
# Creates an environment, trains on the built-in English-German phrasebook, evaluates on sentences
# that the model has never seen, and shows five of their translations. RUN is the run directory
# (default: runs/quickstart), FLAG a flag of t2t.train. The same command again continues a stopped
# run.
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

announce "Training"
"$python" -m t2t.train --config=configs/quickstart.py --workdir="$run" "$@"

announce "Evaluation on unseen sentences"
"$python" -m t2t.evaluate --workdir="$run" --split=test

announce "Some of these sentences"
"$python" - "$run/evaluations" <<'END'
import json, sys
from pathlib import Path

folder = Path(sys.argv[1])
latest = max(folder.glob("test-*.json"), key=lambda path: path.stat().st_mtime)
files = json.loads(latest.read_text("utf-8"))["texts"]
names = ("sources", "hypotheses", "references")
texts = [(folder / files[name]).read_text("utf-8").splitlines() for name in names]
for source, translation, reference in list(zip(*texts))[::200]:
    print(f"source       {source}\ntranslation  {translation}\nreference    {reference}\n")
END

announce "Done"
cat <<NEXT
Sentences of your own:  cd "$repository" && "$python" -m t2t.translate --workdir="$run"
Scores and curves:      $run/evaluations, $run/metrics.jsonl
Train on your own text: README.md, "Train on your own text"
NEXT
