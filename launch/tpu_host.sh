#!/usr/bin/env bash
# The part of launch/tpu.py that runs on each host of a TPU, in the copy of the checkout there:
#
#   launch/tpu_host.sh install                   makes the environment; with uv where Python is too old
#   launch/tpu_host.sh start MODULE [FLAG ...]   starts a program, which goes on without the connection
#   launch/tpu_host.sh halt_program              asks it to save and stop, and waits until it has
#   launch/tpu_host.sh stop                      the same, and launch/tpu.py does not start it again
#   launch/tpu_host.sh status [MODULE ...]       prints how it is; absent if another one has ended
#   launch/tpu_host.sh follow                    prints its output as it grows
#
# The log of the program, its command line, process and exit status are in ~/t2t-run.
set -euo pipefail

# shellcheck source-path=SCRIPTDIR source=environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
readonly state=$HOME/t2t-run stop_patience=600 uv=0.13.9

# launch/tpu.py reads these lines among the output of all hosts.
report() {
    echo "t2t-host ${T2T_HOST:-$(hostname)} $*"
}

# After a reboot the number may belong to another process.
is_running() {
    [[ -s $state/pid ]] && grep -qs t2t "/proc/$(<"$state/pid")/cmdline"
}

install() {
    if ! (find_python) >/dev/null 2>&1; then
        echo "Python 3.11 or newer is missing, as in the standard images; installing 3.13 with uv"
        python3 -m pip install --user --quiet "uv==$uv" || fail "cannot install uv; on the hosts run
curl -LsSf https://astral.sh/uv/install.sh | sh && uv python install 3.13, and set PYTHON"
        python3 -m uv python install --quiet 3.13
        PYTHON=$(python3 -m uv python find --managed-python 3.13)
        export PYTHON
    fi
    make_environment requirements-tpu.txt
    make_environment requirements-gcs.txt
    report ready
}

run() {
    local code=0 child
    cd "$repository"
    "$python" -m "$@" --distributed &
    child=$!
    if ! echo "$child" >"$state/pid"; then # as on a full disk
        kill "$child"
        exit 1
    fi
    wait "$child" || code=$?
    echo "$code" >"$state/status"
}

start() {
    if is_running; then
        report running
        return
    fi
    mkdir -p "$state"
    rm -f "$state"/{status,stopped,pid}
    printf '%s\n' "$@" >"$state/program"
    # A session of its own: the end of the ssh connection does not reach it.
    setsid "$repository/launch/tpu_host.sh" run "$@" </dev/null >>"$state/log" 2>&1 &
    until [[ -s $state/pid ]]; do
        kill -0 $! 2>/dev/null || fail "$1 did not start: $(tail -n 5 "$state/log")"
        sleep 0.1
    done
    report started
}

stop() {
    mkdir -p "$state"
    touch "$state/stopped"
    halt_program
}

halt_program() {
    if is_running; then
        kill -TERM "$(<"$state/pid")"
        for ((second = 0; second < stop_patience; second++)); do
            is_running || break
            sleep 1
        done
    fi
    status
}

status() {
    if is_running; then
        report running
    elif (($#)) && [[ $(printf '%s\n' "$@") != "$(cat "$state/program" 2>/dev/null)" ]]; then
        report absent # what ended is another program
    elif [[ -e $state/stopped ]]; then
        report stopped
    elif [[ -s $state/status ]]; then
        report exited "$(<"$state/status")"
    elif [[ -s $state/pid ]]; then
        report lost # the host was restarted
    else
        report absent
    fi
}

follow() {
    exec tail -n 50 -F "$state/log"
}

"$@"
