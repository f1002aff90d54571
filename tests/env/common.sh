# Sourced by the scripts beside it: the checkout's root, a lock per environment, and what pip may print.

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
python=${PYTHON:-python3}

say() { printf '[env %s] %s\n' "$(date +%H:%M:%S)" "$*"; }

# begin DIRECTORY INPUT...: take the lock of an environment; returns 1 when its stamp is newer than every input.
begin() {
    local directory=$1 input
    shift
    mkdir -p "$directory"
    exec 9>"$directory/.lock"
    flock 9
    [ -f "$directory/.made" ] || return 0
    for input in "$@"; do
        if [ "$input" -nt "$directory/.made" ]; then return 0; fi
    done
    return 1
}

# create DIRECTORY: the virtual environment itself, with what editable installs need.
create() {
    local directory=$1
    if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
        say "kvhub needs Python 3.11 or later, found $("$python" -V); say PYTHON=/path/to/python3.11" >&2
        exit 1
    fi
    if [ ! -x "$directory/bin/pip" ]; then
        say "creating $(basename "$directory") with $("$python" -V)"
        "$python" -m venv "$directory"
    fi
    pip_of "$directory" install 'setuptools>=69' wheel
}

pip_of() {
    local directory=$1
    shift
    "$directory/bin/python" -m pip --disable-pip-version-check --no-input --quiet --quiet "$@"
}

# installed ENVIRONMENT ARGUMENT...: pip, for packages of this repository.  One at a time: builds of two environments would
# write the same metadata and the same compiled library beside a package's sources.
installed() {
    flock "${BASH_SOURCE[0]}" "$1/bin/python" -m pip --disable-pip-version-check --no-input --quiet --quiet \
        install --no-build-isolation "${@:2}"
}

# editables PATTERN...: `-e PATH` for each package of the repository that exists; the UCX plugin with its library.
editables() {
    local package extra
    for package in "$@"; do
        case $package in */kvhub-ucx) extra='[libucx]' ;; *) extra='' ;; esac
        if [ -f "$package/pyproject.toml" ]; then printf -- '-e\n%s%s\n' "$package" "$extra"; fi
    done
}
