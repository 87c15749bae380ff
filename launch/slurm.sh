#!/usr/bin/env bash
# Runs any t2t program on SLURM: on one node one process for all GPUs, on several one for each GPU.
#
#   sbatch --gpus-per-node=8 launch/slurm.sh \
#       t2t.train --config=configs/big.py --workdir=/shared/runs/big
#   sbatch --nodes=2 --gpus-per-node=8 --ntasks-per-node=8 launch/slurm.sh \
#       t2t.train --config=configs/big.py --workdir=/shared/runs/big
#
# Submit it from the checkout; all nodes must see the checkout and the run directory. t2t.sweep,
# t2t.pipeline and others are for one process; in a job array t2t.sweep gets its --index.
#
#   PYTHON=FILE     the Python to run; by default that of the environment .venv
#   T2T_IMAGE=IMAGE runs in a container (enroot and pyxis) with the image's Python, but this checkout
#   T2T_MOUNTS=A:B  further folders for the container
#
# Five minutes before the time limit, and when the job is preempted, training saves and exits with
# status 75; the job then returns to the queue and continues later. It is also requeued after the loss
# of a process, unless ten starts in a row were lost without a new checkpoint; the job's comment counts
# them.
#SBATCH --job-name=t2t
#SBATCH --cpus-per-task=8
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@300
set -euo pipefail

readonly interrupted=75 # t2t.runtime.command_line.INTERRUPTED
readonly killed=128     # and above: a process died by a signal, as those do that lose another
readonly max_lost=10    # starts in a row that are lost without a new checkpoint, and followed by another

# Each task sees all GPUs that the job has on its node, which is SLURM's default: JAX takes the one
# with the task's number, and NCCL reaches the others. srun does not inherit --cpus-per-task (since
# SLURM 22.05).
flags=(--cpus-per-task="${SLURM_CPUS_PER_TASK:-8}")
if [[ ${SLURM_GPUS_PER_TASK:-}${SLURM_NTASKS_PER_GPU:-} ]]; then
    # Otherwise a task would see only its own. Not always, since with this flag tasks see all GPUs of
    # the node, also those of other jobs, unless the cluster hides them (ConstrainDevices).
    flags+=(--gpu-bind=none)
fi
python=${PYTHON:-.venv/bin/python}
if [[ ${T2T_IMAGE:-} ]]; then
    python=${PYTHON:-python}
    flags+=(--container-image="$T2T_IMAGE" --container-workdir="$PWD"
        --container-mounts="$PWD:$PWD${T2T_MOUNTS:+,$T2T_MOUNTS}")
elif ! command -v "$python" >/dev/null; then
    echo "error: $python is missing; make it with: bash -c 'source launch/environment.sh;" \
        "make_environment cuda', or set PYTHON or T2T_IMAGE" >&2
    exit 2
fi
if ((${SLURM_NTASKS:-${SLURM_NNODES:-1}} > 1)); then # without a number srun starts one per node
    set -- "$@" --distributed
elif [[ $1 == t2t.sweep && ${SLURM_ARRAY_TASK_ID:-} ]]; then
    set -- "$@" --index="$SLURM_ARRAY_TASK_ID"
fi

# Prints a fingerprint of the checkpoints of --workdir, a run, a sweep or a pipeline; of a bucket it sees none.
describe_checkpoints() {
    local argument previous='' workdir=''
    for argument in "$@"; do
        [[ $argument != --workdir=* ]] || workdir=${argument#*=}
        [[ $previous != --workdir ]] || workdir=$argument
        previous=$argument
    done
    find "${workdir/#\~/$HOME}" -maxdepth 3 -regex '.*/checkpoints/[0-9]+' 2>/dev/null |
        sort | cksum | cut -d' ' -f1
}

# Adds this start to those that were lost since the last new checkpoint; fails if they are too many.
# A job that is requeued keeps its comment, which may have other words in front.
count_lost() {
    local comment checkpoints lost=1
    comment=$(squeue --noheader --jobs="$job" --format=%k)
    checkpoints=$(describe_checkpoints "$@")
    if [[ $comment =~ ^(.*)'lost starts: '([0-9]+)' at '([0-9]+)$ ]]; then
        comment=${BASH_REMATCH[1]}
        ((BASH_REMATCH[3] != checkpoints)) || lost=$((BASH_REMATCH[2] + 1))
    elif [[ $comment == '(null)' ]]; then
        comment=''
    else
        comment=${comment:+$comment }
    fi
    scontrol update JobId="$job" Comment="${comment}lost starts: $lost at $checkpoints" ||
        lost=$((${SLURM_RESTART_COUNT:-0} + 1)) # without a comment all starts count
    ((lost <= max_lost))
}

status=0
srun "${flags[@]}" "$python" -m "$@" || status=$?
# The task of an array that starts last has the array's number, which would requeue all tasks.
job=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
if ((status == interrupted)) || { ((status > killed)) && count_lost "$@"; }; then
    scontrol requeue "$job"
fi
exit "$status"
