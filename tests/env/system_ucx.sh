#!/usr/bin/env bash
# Unpack the distribution's UCX into .ucx-system/lib, without installing it and without root: the one with RDMA verbs,
# for the tests of the provider `system`.  They are skipped where apt cannot deliver it, so that is said and no failure.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

target=$root/.ucx-system
packages=(libucx0 ibverbs-providers libibverbs1 librdmacm1 libnl-3-200 libnl-route-3-200 libnuma1)
begin "$target" "${BASH_SOURCE[0]}" || exit 0

skip() {
    touch "$target/.tried"
    say "no UCX of the distribution: $1; the tests that want it will be skipped"
    exit 0
}

fetch() (cd "$target/debs" && timeout 60 apt-get -qq download "${packages[@]}" >"$target/log" 2>&1)

if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then skip "there is no apt here"; fi
# What failed a moment ago, without a network for instance, would only be slow again.
if [ -n "$(find "$target/.tried" -mmin -60 2>/dev/null)" ]; then exit 0; fi
rm -rf "$target/debs" "$target/files" "$target/lib"
mkdir -p "$target/debs" "$target/lib"
if ! fetch; then
    timeout 120 apt-get -qq update >/dev/null 2>&1 || true
    fetch || skip "apt-get download: $(grep -m1 '^E:' "$target/log" || echo failed)"
fi
for package in "$target"/debs/*.deb; do dpkg -x "$package" "$target/files"; done
for folder in "$target"/files/{usr/,}lib/*-linux-gnu; do cp -a "$folder/." "$target/lib/"; done
rm -rf "$target/debs" "$target/files" "$target/log"
touch "$target/.made"
say "unpacked the distribution's UCX into $(basename "$target")"
