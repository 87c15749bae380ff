#!/usr/bin/env bash
# Runs any t2t program on SLURM, one process per GPU:
#
#   sbatch --nodes=2 --gpus-per-node=8 --ntasks-per-node=8 launch/slurm.sh \
#       t2t.train --config=configs/big.py --workdir=/shared/runs/big
#
# Submit it from the checkout, after its environment (.venv) was created. All nodes must see the run
# directory and the checkout. Five minutes before the time limit, and when the job is preempted,
# training saves and exits with status 75; the job then returns to the queue and continues later.
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
