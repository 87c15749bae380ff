#!/usr/bin/env bash
# Any program of t2t on SLURM, one process a GPU:
#
#   sbatch --nodes=2 --gpus-per-node=8 --ntasks-per-node=8 launch/slurm.sh \
#       t2t.train --config=configs/big.py --workdir=/shared/runs/big
#
# Submit it in the checkout, with its environment (.venv) made. The run directory and the checkout
# have to be seen by all nodes. Five minutes before the time limit, and when the job is preempted,
# training saves and ends with status 75; the job then goes back to the queue and continues there.
#SBATCH --job-name=t2t
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=TERM@300
set -euo pipefail

readonly interrupted=75 # t2t.runtime.program.INTERRUPTED

status=0
srun "${PYTHON:-.venv/bin/python}" -m "$@" --distributed || status=$?
if ((status == interrupted)); then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
