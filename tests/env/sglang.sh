#!/usr/bin/env bash
# Make or renew .venv-sglang: SGLang on a CPU, kvhub, kernels, plugins and the adapter.  SGLang publishes CUDA builds only;
# what it lacks on a CPU is in sglang_cpu/ beside this, and nothing of SGLang itself is changed.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

target=$root/.venv-sglang
here=$root/tests/env
begin "$target" "$here"/sglang{.sh,.txt,_deps.txt} "$here"/sglang_cpu/pyproject.toml "$here"/{common.sh,tools.txt} \
    "$root"/pyproject.toml "$root"/plugins/*/pyproject.toml "$root"/adapters/kvhub-{sglang,front}/pyproject.toml \
    "$root"/kernels/pyproject.toml || exit 0
rm -f "$target/.made"
create "$target"

wanted=$(sed -n 's/^sglang==//p' "$here/sglang.txt")
have=$("$target/bin/python" -c 'from importlib import metadata; print(metadata.version("sglang"))' 2>/dev/null || true)
if [ "$have" != "$wanted" ]; then
    say "installing SGLang $wanted with torch: about three minutes and 3 GB"
    # First what it imports, then itself without its requirements: those ask for another torch and for CUDA.
    pip_of "$target" install -r "$here/sglang_deps.txt"
    pip_of "$target" install --no-deps -r "$here/sglang.txt"
fi
site=$("$target/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# The registry's torchvision is linked with CUDA: it imports beside a CPU torch once its compiled part is not asked for.
printf '%s\n' 'import sys, types; sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("none"))' \
    >"$site/kvhub_torchvision.pth"

mapfile -t packages < <(editables "$root" "$root/kernels" "$root"/plugins/* "$root"/adapters/kvhub-{sglang,front})
say "installing $((${#packages[@]} / 2)) packages of this repository"
installed "$target" -r "$here/tools.txt" "${packages[@]}" -c "$here/sglang_deps.txt"
installed "$target" --no-deps -e "$here/sglang_cpu"
touch "$target/.made"
say "$(basename "$target") is ready"
