#!/usr/bin/env bash
# The entry point of the image: launch/container.sh MODULE [FLAG ...]
#
# SIGTERM reaches the program, which saves and stops. Its status 76 (stopped by a request in stop.json)
# becomes 0, by which Kubernetes knows that all is well; other statuses stay.
set -euo pipefail

readonly stopped=76 # t2t.training.stop_request.STOPPED_EARLY

child='' stopping=''
forward() {
    stopping=yes
    [[ -z $child ]] || kill -TERM "$child" 2>/dev/null || true
}
trap forward TERM INT # before the program starts, so that no signal ends this script alone
python -m "$@" <&0 & # without <&0 bash would give it /dev/null as input
child=$!
[[ -z $stopping ]] || forward
status=0
while true; do # a signal ends `wait` before the program has ended
    wait "$child" && status=0 || status=$?
    kill -0 "$child" 2>/dev/null || break
done
if ((status == stopped)); then
    exit 0
fi
exit "$status"
