#!/usr/bin/env bash
# ahead.sh COMMAND...: run a command, and build the engines' environments behind it meanwhile: minutes of downloads that
# the core's tests need not wait for.  What needs an environment makes it again: it waits for this one's lock, finds it
# ready, or says why it is not.  What is still building ends with the command.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")

set -m # a process group of its own, to be ended as a whole
nice -n 19 bash -c 'bash "$1/engine.sh"; bash "$1/sglang.sh"' ahead "$here" &
behind=$!
set +m
trap 'kill -TERM -- -$behind 2>/dev/null || true' EXIT
"$@"
