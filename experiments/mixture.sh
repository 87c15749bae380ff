#!/usr/bin/env bash
# English-German on 1,000 pairs of Multi30k and the other captions of each side as text alone:
# translation alone, denoising before it, both in a mixture, back-translation:
# experiments/mixture.sh RUNS [STEPS]
#
# RUNS is the folder of the runs; each row of configs/sweeps/mixture.py is trained with three seeds
# for STEPS steps (1,500), two runs at a time. The same command again continues what was stopped.
# RUNS/rows/report.md has the verdicts.
#
# T2T_MULTI30K=FOLDER is the folder of Multi30k (train.en.gz and so on).
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=../launch/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/../launch/environment.sh"

[[ $# -ge 1 && $# -le 2 && $1 != *://* ]] || fail "name one local folder for the runs: $0 RUNS"
text=$(realpath -m "${T2T_MULTI30K:-$HOME/.cache/t2t/multi30k}")
[[ -f $text/train.en.gz ]] || fail "$text holds no train.en.gz; T2T_MULTI30K=FOLDER names Multi30k"
steps=${2:-1500}
cd "$repository"
make_environment
set_memory
export PYTHONPATH=$repository
mkdir -p "$1/text"
cd "$1" # the rows of configs/sweeps/mixture.py name the text relative to this folder

for language in en de; do
    for split in train val test_2016_flickr; do
        gzip -dc "$text/$split.$language.gz" >"text/$split.$language"
    done
    head -n 1000 "text/train.$language" >"text/pairs.$language"
    tail -n +1001 "text/train.$language" >"text/rest.$language"
done

every=$((steps / 5))
common=(--config.data.source=text --config.data.filters= --config.training.warmup_steps=100
    --config.training.validate_every="$every" --config.training.translate_every="$every"
    --config.checkpoints.every="$every" --config.checkpoints.best_metric=bleu)

announce "The vocabulary of all rows"
"$python" -m t2t.prepare --config=configs/multi30k.py:en-de --workdir=prepared "${common[@]}" \
    --config.training.steps="$steps" \
    --config.data.train_src=text/pairs.en --config.data.train_tgt=text/pairs.de \
    --config.data.mixture="translate: prefix=<2de>" \
    --config.data.mixture="german: objective=denoising train_tgt=text/rest.de prefix=<2de>" \
    --config.data.mixture="english: objective=denoising train_tgt=text/rest.en prefix=<2en>"

translate_back() { # RUN STEPS: trains a model, and translates by greedy search
    "$python" -m t2t.train --config=configs/multi30k.py:de-en --workdir="$1" "${common[@]}" \
        --config.tokenizer.path=prepared/vocab \
        --config.data.train_src=text/pairs.de --config.data.train_tgt=text/pairs.en \
        --config.data.validation_src=text/val.de --config.data.validation_tgt=text/val.en \
        --config.training.steps="$2"
    if [[ ! -f text/$1.en ]]; then
        "$python" -m t2t.translate --workdir="$1" --beam_size=1 <text/rest.de >text/back.part
        mv text/back.part "text/$1.en"
    fi
}
announce "Back-translations"
translate_back back "$steps"
announce "Back-translations of a model with fewer steps"
translate_back back-short $((2 * steps / 5))

announce "The rows"
"$python" -m t2t.sweep --sweep="$repository/configs/sweeps/mixture.py" --workers=2 \
    --checkpoint=best --config=configs/multi30k.py:en-de --workdir=rows "${common[@]}" \
    --config.training.steps="$steps" \
    --config.tokenizer.path=prepared/vocab \
    --config.data.train_src=text/pairs.en --config.data.train_tgt=text/pairs.de \
    --config.data.validation_src=text/val.en --config.data.validation_tgt=text/val.de \
    --config.data.test_src=text/test_2016_flickr.en --config.data.test_tgt=text/test_2016_flickr.de
