#!/usr/bin/env bash
# Make or renew .venv-docs: what builds the documentation site.  No package of this repository is in it: the reference is
# made from the source alone.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

target=$root/.venv-docs
begin "$target" "$root"/tests/env/{common.sh,docs.sh,docs.txt} || exit 0
create "$target"
say "installing the tools that build the documentation"
pip_of "$target" install -r "$root/tests/env/docs.txt"
touch "$target/.made"
say "$(basename "$target") is ready"
