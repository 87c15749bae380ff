# shellcheck shell=bash
# Creates and reuses the virtual environment .venv; the scripts in this folder source it.
#
# After `make_environment [EXTRAS]`, "$python" is an interpreter with the packages of requirements.txt
# and of the extras in pyproject.toml, such as cuda,gcs, in the tested versions (scripts/constraints/).
#
#   PYTHON=/path/to/python   creates the environment with this interpreter
#   T2T_ENVIRONMENT=FOLDER   creates it in FOLDER instead of .venv
#   T2T_CONSTRAINTS=FILE     installs the versions in FILE; empty: the newest that requirements.txt allows
#
# Packages are installed by uv if it is on the PATH, which takes seconds, and otherwise by pip.

unset CDPATH # with it, cd prints a path
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
environment=${T2T_ENVIRONMENT:-$repository/.venv}
[[ $environment == /* ]] || environment=$PWD/$environment
[[ ${T2T_CONSTRAINTS:-/} == /* ]] || T2T_CONSTRAINTS=$PWD/$T2T_CONSTRAINTS
python=$environment/bin/python

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 1
}

announce() {
    printf '\n== %s (%d:%02d)\n' "$1" $((SECONDS / 60)) $((SECONDS % 60))
}

# Large memory pages make training on a CPU faster (docs/programs.md). On a GPU two
# programs at the same time may not both take all of its memory.
set_memory() {
    export GLIBC_TUNABLES=${GLIBC_TUNABLES:-glibc.malloc.hugetlb=1}
    export XLA_PYTHON_CLIENT_PREALLOCATE=${XLA_PYTHON_CLIENT_PREALLOCATE:-false}
}

# Runs the candidate: version managers put commands on the PATH that only print an error.
is_recent() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

can_make_environments() {
    "$1" -c 'import ensurepip, venv' >/dev/null 2>&1
}

find_python() {
    local candidate recent=
    local candidates=(python3.13 python3.14 python3.12 python3.11 python3 python)
    [[ ! ${PYTHON:-} ]] || candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        is_recent "$candidate" || continue
        if can_make_environments "$candidate"; then
            printf '%s\n' "$candidate"
            return
        fi
        recent=${recent:-$candidate}
    done
    if [[ $recent ]]; then
        fail "$recent lacks the modules venv and ensurepip; install them (Debian, Ubuntu:
apt install python3-venv), or name another interpreter: PYTHON=/path/to/python $0"
    fi
    fail "t2t needs Python 3.11 or newer, and none is on the PATH; install it, or name one:
PYTHON=/path/to/python $0"
}

# Prints the file of tested versions for "$python"; if there is none, warns and prints nothing.
find_constraints() {
    local version file
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    file=${T2T_CONSTRAINTS-$repository/scripts/constraints/python$version.txt}
    if [[ -z $file || -f $file ]]; then
        printf '%s\n' "$file"
    elif [[ ${T2T_CONSTRAINTS:-} ]]; then
        fail "T2T_CONSTRAINTS=$T2T_CONSTRAINTS is no file"
    else
        printf 'warning: t2t was not tested with Python %s; choose another with PYTHON=python3.13\n' \
            "$version" >&2
    fi
}

# Prints requirements.txt and the requirements of the extras. An extra may include others: t2t[gcs,hf].
list_requirements() {
    cat "$repository/requirements.txt"
    "$python" - "$repository/pyproject.toml" "$1" <<'END'
import sys, tomllib
from pathlib import Path

extras = tomllib.loads(Path(sys.argv[1]).read_text("utf-8"))["project"]["optional-dependencies"]
names = list(filter(None, sys.argv[2].split(",")))
for name in names:  # the list grows
    if name not in extras:
        sys.exit(f"error: there is no extra {name}; pyproject.toml has {', '.join(extras)}")
    for line in extras[name]:
        if line.startswith("t2t["):
            names += line[4:-1].split(",")
        else:
            print(line)
END
}

install_packages() {
    if command -v uv >/dev/null; then
        uv pip install --python "$python" "$@"
    else
        "$python" -m pip install --disable-pip-version-check --no-input "$@"
    fi
}

make_environment() {
    local extras=${1:-} base constraints requirements wanted
    local stamp=$environment/installed${extras:+-$extras} log=$environment/install.log
    local own=$environment/made-by-t2t # in an environment that this function may make anew
    if [[ ${PYTHON:-} ]] && ! is_recent "$PYTHON"; then
        fail "PYTHON=$PYTHON is no Python 3.11 or newer"
    fi
    if ! is_recent "$python" || ! "$python" -m pip --version >/dev/null 2>&1 ||
        [[ ${PYTHON:-} && $("$PYTHON" -VV) != "$("$python" -VV)" ]]; then
        base=$(find_python)
        if [[ ! -e $own && $(ls -A "$environment" 2>/dev/null) ]]; then
            fail "$environment was not made by the scripts in launch/, and cannot be used: it lacks pip or
the right Python; remove it, or name another folder: T2T_ENVIRONMENT=FOLDER $0"
        fi
        echo "Creating ${environment#"$PWD/"} with $("$base" --version)"
        mkdir -p "$environment"
        : >"$own" # first, so that an interrupted one is made again
        find "$environment/" -mindepth 1 ! -path "$own" -delete
        "$base" -m venv --without-pip "$environment"
        "$python" -m ensurepip --upgrade --default-pip >/dev/null
    fi
    constraints=$(find_constraints) || exit
    requirements=$(list_requirements "$extras") || exit
    # The interpreter, the requirements and the versions: what the installation depends on.
    wanted=$("$python" -VV && echo "$requirements" && cat ${constraints:+"$constraints"} </dev/null)
    if [[ $wanted == "$(cat "$stamp" 2>/dev/null)" ]]; then
        return
    fi
    echo "Installing requirements.txt${extras:+ with the extras $extras}${constraints:+, versions as in }${constraints#"$repository/"}" \
        "(1.1 GB or more, a minute or two) ..."
    echo "$requirements" >"$environment/requirements.txt"
    if ! install_packages --requirement "$environment/requirements.txt" \
        ${constraints:+--constraint "$constraints"} >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        fail "the packages could not be installed; the full log is in $log"
    fi
    echo "$wanted" >"$stamp" # last, so that an interrupted run installs again
    echo "Installed in ${SECONDS} s"
}
