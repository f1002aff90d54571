#!/usr/bin/env bash
# Make or renew .venv: core, plugins, front and the tools of lint and tests; no engine and no torch.  And .ucx-system
# and .s3-server.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

bash "$root/tests/env/system_ucx.sh" || say "system_ucx.sh failed; the tests that want its UCX will be skipped"
bash "$root/tests/env/s3_server.sh" || say "s3_server.sh failed; the tests that want an S3 server will be skipped"

target=$root/.venv
begin "$target" "$root"/tests/env/*.{sh,txt} "$root"/pyproject.toml "$root"/{plugins,adapters}/*/pyproject.toml || exit 0
create "$target"
mapfile -t packages < <(editables "$root" "$root"/plugins/* "$root/adapters/kvhub-front")
say "installing $((${#packages[@]} / 2)) packages of this repository and the tools"
installed "$target" -r "$root/tests/env/tools.txt" -r "$root/tests/env/lint.txt" "${packages[@]}"
pip_of "$target" install --no-deps -r "$root/tests/env/ucxx.txt"
touch "$target/.made"
say "$(basename "$target") is ready"
