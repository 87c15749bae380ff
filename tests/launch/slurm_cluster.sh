#!/usr/bin/env bash
# Starts and stops a real SLURM for tests, as root on Debian: tests/launch/slurm_cluster.sh start|stop
#
# Its three nodes are daemons on this machine, each with 32 pretended cores and 4 pretended GPUs. Two
# of them, n2 and n3, belong to the partitions `low` and `high`: a job in `high` preempts those in
# `low`. There are no containers and no accounts. `start` installs Debian's packages if they are missing.
set -euo pipefail

readonly config=/etc/slurm/slurm.conf mark="# Made by tests/launch/slurm_cluster.sh"
readonly state=/run/slurm-for-tests nodes=(n1 n2 n3)
readonly hosts_line="127.0.0.1 ${nodes[*]} $mark"

fail() {
    echo "error: $*" >&2
    exit 1
}

# Waits for up to 30 seconds until a command succeeds.
wait_until() {
    local deadline=$((SECONDS + 30))
    until "$@" >/dev/null 2>&1; do
        ((SECONDS < deadline)) || fail "this did not succeed within 30 s: $*; logs: $state/*.log"
        sleep 0.2
    done
}

write_config() {
    local host
    host=$(hostname -s)
    # cred_expire: a job that is requeued waits for this long, two minutes by default.
    # KillWait: seconds between SIGTERM and SIGKILL.
    cat <<END
$mark
ClusterName=tests
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthInfo=cred_expire=5
StateSaveLocation=$state/controller
SlurmdSpoolDir=$state/%n
SlurmctldPidFile=$state/slurmctld.pid
SlurmdPidFile=$state/slurmd-%n.pid
SlurmctldLogFile=$state/slurmctld.log
SlurmdLogFile=$state/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
KillWait=20
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=1,sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
NodeName=DEFAULT Gres=gpu:4 CPUs=32 CoresPerSocket=32 RealMemory=1000
$(for i in "${!nodes[@]}"; do
    echo "NodeName=${nodes[i]} NodeHostname=$host NodeAddr=127.0.0.1 Port=$((17001 + i))"
done)
PartitionName=main Nodes=n1 Default=YES
PartitionName=low Nodes=n2,n3 PriorityTier=1 GraceTime=60
PartitionName=high Nodes=n2,n3 PriorityTier=2 PreemptMode=OFF
END
}

start() {
    [[ $EUID == 0 ]] || fail "the daemons run as root"
    if [[ -e $config ]] && ! grep -qxF "$mark" "$config"; then
        fail "$config is of another SLURM; this one would replace it"
    fi
    if ! command -v slurmctld >/dev/null || ! command -v munged >/dev/null; then
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurm-wlm munge
    fi
    mkdir -p "$state/controller" /etc/slurm
    write_config >"$config"
    for i in {0..3}; do
        [[ -e $state/gpu$i ]] || mknod "$state/gpu$i" c 1 3 # another name of /dev/null
    done
    echo "Name=gpu File=$state/gpu[0-3]" >/etc/slurm/gres.conf
    # JAX looks for process 0 under the name of its node. The file may be a mount: it is appended to.
    grep -qxF "$hosts_line" /etc/hosts || echo "$hosts_line" >>/etc/hosts
    if ! munge --no-input >/dev/null 2>&1; then
        [[ -e /etc/munge/munge.key ]] || mungekey --create
        install -d -o munge -g munge /run/munge /var/log/munge
        chown munge:munge /etc/munge/munge.key
        runuser -u munge -- munged
        cp /run/munge/munged.pid "$state/"
    fi
    is_running "$state/slurmctld.pid" || slurmctld -c # forgets the jobs of an earlier start
    for node in "${nodes[@]}"; do
        is_running "$state/slurmd-$node.pid" || slurmd -N "$node"
    done
    wait_until all_nodes_are_up
    sinfo
}

all_nodes_are_up() {
    [[ $(sinfo --noheader --Node --format=%N --states=idle,mixed,allocated | sort -u | wc -l) == "${#nodes[@]}" ]]
}

# Whether the process runs whose number is in a file. The daemons remove their files when they end.
is_running() {
    local pid
    pid=$(cat "$1" 2>/dev/null) && [[ $pid ]] && ! has_ended "$pid"
}

has_ended() {
    # A process that has ended remains as a zombie, Z, until its parent asks about it.
    ! grep -qs $'^State:\t[^Z]' "/proc/$1/status"
}

no_jobs_are_left() {
    [[ ! $(squeue --noheader) ]]
}

stop() {
    local file pid
    if is_running "$state/slurmctld.pid"; then
        squeue --noheader --format=%A | sort -u | xargs --no-run-if-empty scancel
        wait_until no_jobs_are_left
    fi
    for file in "$state"/slurmd-*.pid "$state/slurmctld.pid" "$state/munged.pid"; do
        if is_running "$file"; then
            pid=$(cat "$file")
            kill "$pid"
            wait_until has_ended "$pid"
        fi
    done
    if [[ -e $config ]] && grep -qxF "$mark" "$config"; then
        rm -f "$config" /etc/slurm/gres.conf
    fi
    rm -rf "$state"
    # Not sed -i, which replaces the file.
    { grep -vxF "$hosts_line" /etc/hosts || true; } >/etc/hosts.kept
    cat /etc/hosts.kept >/etc/hosts
    rm /etc/hosts.kept
}

case "${1:-}" in
start | stop) "$1" ;;
*)
    echo "usage: tests/launch/slurm_cluster.sh start|stop" >&2
    exit 2
    ;;
esac
