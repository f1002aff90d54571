#!/bin/sh
# Build the peer's environment: LMCache 0.5.6 beside the CPU build of vLLM, for `make bench-vllm` only.
#
#     lmcache_env.sh ENGINE_VENV TARGET_VENV
#
# The engine's own environment is read through a .pth and never changed: what LMCache needs besides it, and the one
# repair it needs on a CPU, live in TARGET_VENV.  Its own dependency list cannot be installed as it stands (it asks for
# CUDA packages and for an older numpy than vLLM's), hence --no-deps and the explicit list.
set -eu

engine=${1:?usage: lmcache_env.sh ENGINE_VENV TARGET_VENV}
target=${2:?usage: lmcache_env.sh ENGINE_VENV TARGET_VENV}
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)

if [ ! -x "$engine/bin/python" ]; then
    echo "lmcache_env: no engine environment at $engine (found no bin/python); run 'make engine' first" >&2
    exit 1
fi
engine=$(CDPATH= cd -- "$engine" && pwd)
recipe=$({ cat "$0" "$here/lmcache_requirements.txt"; echo "$engine"; } | cksum)
if [ -x "$target/bin/python" ] && [ "$(cat "$target/.recipe" 2>/dev/null)" = "$recipe" ]; then
    exit 0
fi

echo "lmcache_env: building $target on top of $engine"
"$engine/bin/python" -m venv --clear "$target"
site() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
own=$(site "$target")
base=$(site "$engine")
# Before the .pth is written: pip would take the engine's llvmlite for ours and leave nothing here to repair.
"$target/bin/python" -m pip install -qq --disable-pip-version-check --no-deps \
    --requirement "$here/lmcache_requirements.txt"
# addsitedir, not a bare path: the engine's own .pth files (editable installs) must count too.
printf 'import site; site.addsitedir("%s")\n' "$base" > "$own/engine.pth"

# vLLM 0.32 looks through sys.modules with getattr(module, "__...__"); llvmlite's lazy library object answers every
# name with a wrapper and the engine dies with "'_lib_fn_wrapper' object has no attribute 'get'".
"$target/bin/python" - "$own/llvmlite/binding/ffi.py" <<'PATCH'
import pathlib
import re
import sys

path = pathlib.Path(sys.argv[1])
text = path.read_text()
pattern = r"(class _lib_wrapper.*?def __getattr__\(self, name\):\n)(\s+)"
repair = r"\1\2if name.startswith('__'):\n\2    raise AttributeError(name)\n\2"
repaired, count = re.subn(pattern, repair, text, count=1, flags=re.DOTALL)
if count != 1:
    sys.exit(f"lmcache_env: {path} has no _lib_wrapper.__getattr__ to repair; pin llvmlite 0.47.0")
path.write_text(repaired)
PATCH

"$target/bin/python" -m compileall -q "$own" >/dev/null 2>&1 || true
"$target/bin/python" -c 'import lmcache, vllm, torch' 2>/dev/null || {
    echo "lmcache_env: lmcache, vllm and torch do not import together in $target; see the error below" >&2
    "$target/bin/python" -c 'import lmcache, vllm, torch'
}
printf '%s\n' "$recipe" > "$target/.recipe"
echo "lmcache_env: $target is ready"
