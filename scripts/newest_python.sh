#!/usr/bin/env bash
# Tries t2t with Debian's newest Python: scripts/newest_python.sh FOLDER [COMMAND ...]
#
#   scripts/newest_python.sh /var/tmp/sid                              both commands of the README
#   scripts/newest_python.sh /var/tmp/sid launch/test.sh tests/model   another command
#
# Makes Debian sid in FOLDER if it is not there, clones the last commit of this checkout into
# FOLDER/root/t2t and runs COMMAND in this clone. Needs root on Debian, and debootstrap. Sid takes one
# to five minutes and 0.5 GB. Environments, runs and the cache of compiled programs stay in FOLDER; the
# same command again uses them.
#
# The script mounts /proc, /sys and /dev in a mount namespace of its own. These mounts are visible only
# to the script and end with it, however it ends. So `rm -r FOLDER` never reaches the machine's devices.
#
#   T2T_MIRROR=URL   a mirror of Debian instead of debootstrap's default
set -euo pipefail
unset CDPATH
PATH=$PATH:/usr/sbin:/sbin # which a root shell may lack

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 1
}

if [[ ! ${T2T_OWN_MOUNTS:-} ]]; then
    (($# > 0)) || fail "name a folder: $0 FOLDER [COMMAND ...]"
    ((EUID == 0)) || fail "making and entering another system needs root"
    command -v debootstrap >/dev/null || fail "debootstrap is missing; install it: apt install debootstrap"
    T2T_OWN_MOUNTS=yes exec unshare --mount --propagation=private "${BASH_SOURCE[0]}" "$@"
fi
unset T2T_OWN_MOUNTS

repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
mkdir -p "$1"
system=$(cd "$1" && pwd -P)
shift
[[ $system != / ]] || fail "FOLDER is the root of this machine"
made=$system/made-by-t2t # written last, so that an unfinished system is noticed
clone=$system/root/t2t

exec 9<"$system"
flock --nonblock 9 || fail "another scripts/newest_python.sh uses $system"

if [[ ! -e $made ]]; then
    [[ ! $(ls -A "$system") ]] || fail "$system is not empty and holds no finished system; remove it,
or name another folder"
    debootstrap --variant=minbase --include=ca-certificates,git,python3,python3-venv sid "$system" \
        ${T2T_MIRROR:+"$T2T_MIRROR"}
    : >"$made"
fi

# The network's and pip's settings of this machine.
for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /etc/ssl/certs/ca-certificates.crt \
    /root/.config/pip/pip.conf; do
    [[ ! -e $file ]] || install -D --mode=644 "$file" "$system$file"
done

# The last commit. Environments and runs in the clone are kept, since git ignores them.
[[ -d $clone ]] || git clone --quiet --no-checkout --no-hardlinks "$repository" "$clone"
git -C "$clone" fetch --quiet "$repository" HEAD
git -C "$clone" checkout --quiet --force --detach FETCH_HEAD
git -C "$clone" clean --quiet --force -d

for folder in proc sys dev; do
    mount --rbind "/$folder" "$system/$folder"
done
mount -t tmpfs tmpfs "$system/dev/shm" # not the machine's, to which programs would write

# Settings that name places of this machine do not hold in the other system.
run() {
    env --unset=PYTHON --unset=PYTHONPATH --unset=VIRTUAL_ENV --unset=T2T_ENVIRONMENT \
        --unset=T2T_CONSTRAINTS HOME=/root LANG=C.UTF-8 \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
        chroot "$system" bash -c 'cd /root/t2t && exec "$@"' bash "$@"
}

run python3 --version
if (($#)); then
    run "$@"
else
    run launch/quickstart.sh
    run launch/test.sh
fi
