#!/usr/bin/env bash
# Multi30k from raw text to test scores, for a pair of languages in both directions:
# experiments/multi30k.sh en-de [RUNS [FLAG ...]]
#
# Data diversification (Nguyen et al. 2020): two teachers, one for each direction, translate the
# training text; two students learn from it and from both translations. Both directions are trained
# at the same time, one on each of two cores; all takes less than two and a half hours. RUNS is the
# folder of the runs (default: runs/multi30k-en-de), FLAG a flag of t2t.train for all of them, such
# as --config.seed=1. The same command again continues what was stopped.
#
# T2T_MULTI30K=FOLDER reads Multi30k from that folder instead of downloading it.
# T2T_GENERATIONS=2 goes on: the students translate the training text, and a second generation of
# students learns from the pairs and these translations (3: a third one, and so on).
# T2T_EXTRAS=cuda (or tpu) installs JAX for GPUs (or TPUs).
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=../launch/environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/../launch/environment.sh"

if [[ ! ${1:-} =~ ^(en|de|fr)-(en|de|fr)$ || ${BASH_REMATCH[1]} == "${BASH_REMATCH[2]}" ]]; then
    fail "name two of the languages en, de and fr, such as: $0 en-de"
fi
src=${BASH_REMATCH[1]} tgt=${BASH_REMATCH[2]}
if [[ ${2:-} == --* || "$*" == *--config.data.directory* || "$*" == *cache_directory* ]]; then
    fail "RUNS comes before the flags, and T2T_MULTI30K=FOLDER names the folder of Multi30k"
fi
[[ ${2:-} != *://* ]] || fail "RUNS is a local folder"
generations=${T2T_GENERATIONS:-1}
[[ $generations =~ ^[1-9]$ ]] || fail "T2T_GENERATIONS is a number from 1 to 9"
runs=$(realpath -m "${2:-$repository/runs/multi30k-$1}")
text=$(realpath -m "${T2T_MULTI30K:-$HOME/.cache/t2t/multi30k}")
[[ $runs$text != *[\'\\,]* ]] || fail "RUNS and T2T_MULTI30K may not contain ' or \\ or a comma"
shift $(($# < 2 ? $# : 2))
flags=(${T2T_MULTI30K:+--config.data.directory="$text"} "$@")
mkdir -p "$runs"
cd "$repository"
make_environment "${T2T_EXTRAS:-}"
set_memory

# Each function below replaces its subshell by the program (exec), so that $! and signals are the
# program's.
train() {
    exec "$python" -m t2t.train --config="configs/multi30k.py:$2" --workdir="$runs/$1-$2" \
        "${@:3}" "${flags[@]}"
}

# Prints the file with the training text of a language.
find_text() {
    local file
    for file in "$text/train.$1" "$text/train.$1.gz"; do
        [[ ! -f $file ]] || { echo "$file" && return; }
    done
}

train_teacher() {
    train teacher "$1-$2" --config.training.steps=7000
}

# Translates the training text of language $1 into language $2; the file keeps its name.
translate() {
    exec "$python" -m t2t.translate --workdir="$runs/$teacher-$1-$2" --checkpoint=ema \
        --input="$(find_text "$1")" --output="$runs/$translated-$1-$2"
}

train_student() {
    local src_text tgt_text # in quotes below, since t2t reads these values as Python
    src_text=$(find_text "$1") tgt_text=$(find_text "$2")
    train "$student" "$1-$2" --config.training.steps="$steps" --config.model.dropout="$dropout" \
        --config.data.source=multi30k+text \
        --config.data.train_src="'$src_text'" \
        --config.data.train_tgt="'$runs/$translated-$1-$2/$(basename "$src_text")'" \
        --config.data.train_src="'$runs/$translated-$2-$1/$(basename "$tgt_text")'" \
        --config.data.train_tgt="'$tgt_text'"
}

# Runs a function for both directions at the same time. The output of the second one goes to a log.
# Whichever fails first ends the other one, too; Ctrl-C makes both save and stop.
for_both() {
    local log=$runs/$1-$tgt-$src.log running number code status=0
    echo "$tgt-$src: $log"
    set -m # process groups of their own: Ctrl-C reaches only this script, which sends one signal
    "$1" "$src" "$tgt" &
    running=("$!")
    "$1" "$tgt" "$src" >>"$log" 2>&1 &
    running+=("$!")
    set +m
    trap 'kill "${running[@]}" 2>/dev/null || true' INT TERM HUP
    while ((${#running[@]})); do
        sleep 1 || true
        for number in "${!running[@]}"; do
            ! kill -0 "${running[number]}" 2>/dev/null || continue
            code=0
            wait "${running[number]}" || code=$?
            unset "running[number]"
            ((code == 0)) || ((status)) || status=$code
            ((code != 0 && code != 75)) || continue # 75: stopped by a signal, as the other one was
            kill "${running[@]}" 2>/dev/null || true
            ((number == 0)) || printf 'the end of %s:\n%s\n' "$log" "$(tail "$log")" >&2
        done
    done
    trap - INT TERM HUP
    ((status == 0)) || exit "$status"
}

announce "Teachers"
for_both train_teacher

for language in "$src" "$tgt"; do
    [[ $(find_text "$language") ]] || fail "$text holds neither train.$language nor train.$language.gz;
T2T_MULTI30K=FOLDER names the folder of Multi30k"
done
teacher=teacher translated=translated student=student steps=10000 dropout=0.15
for ((generation = 1; generation <= generations; generation++)); do
    announce "Translations of the training text, generation $generation of $generations"
    for_both translate
    announce "Students, generation $generation of $generations"
    for_both train_student
    teacher=$student translated=translated$((generation + 1)) student=student$((generation + 1))
    steps=13500 dropout=0.1
done

for direction in "$src-$tgt" "$tgt-$src"; do
    for split in validation test; do
        announce "$direction, $split split"
        "$python" -m t2t.evaluate --workdir="$runs/$teacher-$direction" --split=$split --checkpoint=ema
    done
done
announce "Done"
