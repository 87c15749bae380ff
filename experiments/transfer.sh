#!/usr/bin/env bash
# German-French on few pairs of Multi30k: from scratch, from an English-French model, and from a
# model that has learnt from German and French text alone: experiments/transfer.sh RUNS
#
# RUNS is the folder of the runs; each row is trained with three seeds on the first 300, the first
# 1,000 and all 29,000 pairs, two runs at a time. It takes about an hour on two cores. The same
# command again continues what was stopped. RUNS/300/report.md and so on have the verdicts.
#
# T2T_MULTI30K=FOLDER is the folder of Multi30k (train.de.gz and so on).
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=../launch/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/../launch/environment.sh"

[[ $# == 1 && $1 != *://* ]] || fail "name one local folder for the runs: $0 RUNS"
text=$(realpath -m "${T2T_MULTI30K:-$HOME/.cache/t2t/multi30k}")
[[ -f $text/train.de.gz ]] || fail "$text holds no train.de.gz; T2T_MULTI30K=FOLDER names Multi30k"
cd "$repository"
make_environment
set_memory
export PYTHONPATH=$repository
mkdir -p "$1/text"
cd "$1" # the rows of configs/sweeps/transfer.py name the runs relative to this folder

for language in de fr; do
    for split in train val; do
        gzip -dc "$text/$split.$language.gz" >"text/$split.$language"
    done
    for size in 300 1000; do
        head -n "$size" "text/train.$language" >"text/train$size.$language"
    done
done
cat text/val.de text/val.fr >text/val.de-fr

every() { # the interval of validation and of checkpoints
    echo "--config.training.validate_every=$1 --config.checkpoints.every=$1"
}

announce "The models to begin with"
mapfile -t spans < <(printf '%s\n' --config=configs/multi30k.py:de-fr --workdir=spans \
    --config.data.source=text --config.data.filters= \
    --config.data.objective=span_corruption --config.tokenizer.sentinels=8 \
    --config.data.train_tgt=text/train.de --config.data.train_tgt=text/train.fr \
    --config.data.validation_tgt=text/val.de-fr --config.training.steps=1000)
# shellcheck disable=SC2046
"$python" -m t2t.train "${spans[@]}" $(every 500) >spans.log 2>&1 &
# shellcheck disable=SC2046
"$python" -m t2t.train --config=configs/multi30k.py:en-fr --workdir=translation \
    --config.data.directory="$text" --config.training.steps=1000 $(every 500)
wait "$!"

for size in 300 1000 ""; do
    announce "German-French, ${size:-29000} pairs"
    steps=300
    [[ $size ]] || steps=600
    # shellcheck disable=SC2046
    "$python" -m t2t.sweep --sweep="$repository/configs/sweeps/transfer.py" --workers=2 \
        --checkpoint=best --config=configs/multi30k.py:de-fr --workdir="${size:-29000}" \
        --config.data.source=text --config.tokenizer.path=spans/vocab \
        --config.data.train_src="text/train$size.de" --config.data.train_tgt="text/train$size.fr" \
        --config.data.validation_src=text/val.de --config.data.validation_tgt=text/val.fr \
        --config.training.steps="$steps" --config.training.warmup_steps=100 $(every 100)
done
