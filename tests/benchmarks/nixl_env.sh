#!/bin/sh
# Build the environment of NIXL, a row of `make bench-wire` only.
#
#     nixl_env.sh TARGET_VENV
#
# --no-deps: the wheel carries a UCX of its own, and its list of dependencies would bring torch and all of CUDA, which
# nothing here needs.
set -eu

target=${1:?usage: nixl_env.sh TARGET_VENV}
python=${PYTHON:-python3}
recipe=$(cksum < "$0")
if [ -x "$target/bin/python" ] && [ "$(cat "$target/.recipe" 2>/dev/null)" = "$recipe" ]; then
    exit 0
fi

echo "nixl_env: building $target"
"$python" -m venv --clear "$target"
"$target/bin/python" -m pip install -qq --disable-pip-version-check --no-deps 'nixl-cu12==1.5.1' 'numpy==2.3.5'
"$target/bin/python" -m compileall -q "$target/lib" >/dev/null 2>&1 || true
# Left with os._exit: the library crashes in its own destructors, and the status would be that of the crash.
"$target/bin/python" -c 'import os, nixl_cu12, numpy; os._exit(0)' || {
    echo "nixl_env: nixl_cu12 and numpy do not import in $target; see the error above" >&2
    exit 1
}
printf '%s\n' "$recipe" > "$target/.recipe"
echo "nixl_env: $target is ready"
