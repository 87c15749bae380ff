#!/usr/bin/env bash
# Runs any t2t program on all hosts of a Cloud TPU slice:
#
#   launch/tpu_pod.sh NAME ZONE t2t.train --config=configs/big.py --workdir=/mnt/runs/big
#
# Copies this checkout's last commit to the hosts, creates the environment there and starts the
# program. The same command again continues the run. All hosts must see the run directory, for
# example in a mounted bucket or on NFS.
set -euo pipefail

if (($# < 3)); then
    echo "usage: $0 NAME ZONE MODULE [FLAG ...]" >&2
    exit 2
fi
name=$1 zone=$2
shift 2
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
archive=$(mktemp --suffix=.tar.gz)
trap 'rm -f "$archive"' EXIT
if [[ $(git -C "$repository" status --porcelain) ]]; then
    echo "warning: uncommitted changes are not copied" >&2
fi
git -C "$repository" archive --format=tar.gz --output="$archive" HEAD

gcloud compute tpus tpu-vm scp "$archive" "$name:t2t.tar.gz" --zone="$zone" --worker=all
gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" --worker=all --command="
    set -e
    mkdir -p t2t && tar -xzf t2t.tar.gz -C t2t && cd t2t
    source launch/environment.sh && make_environment requirements-tpu.txt
    .venv/bin/python -m $(printf '%q ' "$@") --distributed"
