#!/usr/bin/env bash
# Real NFS on a machine that has none: knfsd and two clients in one boot of User-Mode Linux, an ordinary process.
#
#   run.sh [PYTEST ARGUMENT ...]      the tests of tests/uml/inside, in the environment .venv, over the host's own files
#
# Exit status: pytest's own; 77 where something is missing and 78 where the boot does not get as far as the tests, both said.
# UML is slow: it shows meaning, never speed.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$root/.uml
python=${KVHUB_TEST_PYTHON:-$root/.venv/bin/python}

skip() { echo "nfs tests are skipped: $*"; exit 77; }
for tool in linux.uml rpc.nfsd rpc.mountd exportfs rpcbind mount.nfs ip tc modprobe nsenter mkfs.ext4 setquota; do
    PATH=$PATH:/usr/sbin:/sbin command -v "$tool" >/dev/null || skip "there is no $tool" \
        "(Debian: user-mode-linux kmod nfs-kernel-server nfs-common rpcbind iproute2 quota)"
done
case "$root/" in /run/*|/mnt/*|/dev/*|/var/lib/nfs/*) skip "$root is hidden inside; clone it elsewhere" ;; esac
[ "$(id -u)" = 0 ] || skip "only root may run a file server inside"
modules=$(echo /usr/lib/uml/modules/*)
[ -d "$modules" ] || skip "found $modules for the kernel's modules, expected one directory"

mkdir -p "$work/modules/lib/modules"
ln -sfn "$modules" "$work/modules/lib/modules/$(basename "$modules")"
printf '%s\n' "$@" >"$work/arguments"
rm -f "$work/status" "$work/began"
# Words K=V that the kernel does not know become the environment of its first process.
timeout -k 5 "${KVHUB_TEST_SECONDS:-600}" linux.uml mem=1G root=/dev/root rootfstype=hostfs rootflags=/ ro quiet \
    init="$root/tests/uml/boot.sh" con=null con0=null,fd:1 con1=fd:0,fd:1 WORK="$work" REPOSITORY="$root" \
    PYTHON="$python" IMPORTS="${PYTHONPATH:-$root:$root/plugins/kvhub-nfs}" </dev/null 2>&1 | tr -d '\r' || true
[ -f "$work/began" ] || { echo "nfs tests were not run: the boot did not get as far as the tests"; exit 78; }
[ -f "$work/status" ] || { echo "nfs tests began and did not come to an end within ${KVHUB_TEST_SECONDS:-600} s"; exit 1; }
exit "$(cat "$work/status")"
