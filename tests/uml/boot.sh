#!/bin/bash
# The first process inside: a server in the root network namespace, clients a and b in their own, then the tests.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/run/tmp TMPDIR=/run/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$IMPORTS:$REPOSITORY/tests
mount -t proc proc /proc
mount -t sysfs sys /sys
mountpoint -q /dev || mount -t devtmpfs dev /dev
mkdir -p /dev/shm
for place in /run /var/lib/nfs /dev/shm; do mount -t tmpfs none $place; done

boot() {
    set -e
    modprobe -d "$WORK/modules" -a nfs nfsv3 nfsv4 nfsd veth bridge sch_netem loop ext4 quota_v2
    mkdir -p /run/netns /run/export/kv /run/export/small /run/export/quota /run/a /run/b /run/default /run/small /run/quota /run/old /run/tmp /run/rpcbind
    mount -t tmpfs none /run/tmp
    mount -t tmpfs -o size=400m none /run/export/kv
    mount -t tmpfs -o size=12m none /run/export/small
    truncate -s 64m /run/tmp/quota.img
    mkfs.ext4 -q -O quota -E quotatype=usrquota /run/tmp/quota.img
    mount -o loop,usrquota /run/tmp/quota.img /run/export/quota
    chmod 777 /run/export/quota
    # Nobody's files are held to a quota but those of a user who is not root: the export makes everybody that user.
    setquota -u 1234 12000 12000 0 0 /run/export/quota
    case "$REPOSITORY/$PYTHON" in */tmp/*) ;; *) mount -t tmpfs none /tmp ;; esac  # what is needed from there stays in sight
    mount -t hostfs -o "$WORK" none /mnt
    ip link set lo up
    ip link add lan type bridge
    ip addr add 10.0.0.1/24 dev lan
    ip link set lan up
    number=1
    for client in a b; do
        number=$((number + 1))
        ip netns add $client
        ip link add to-$client type veth peer name eth0 netns $client
        ip link set to-$client master lan up
        ip -n $client addr add 10.0.0.$number/24 dev eth0
        ip -n $client link set eth0 up
        ip -n $client link set lo up
    done
    mkdir -p /var/lib/nfs/{rpc_pipefs,sm,sm.bak,v4recovery,nfsdcltrack}
    touch /var/lib/nfs/{etab,rmtab,state}
    rpcbind
    mount -t nfsd nfsd /proc/fs/nfsd
    echo 10 >/proc/fs/nfsd/nfsv4gracetime
    echo 10 >/proc/fs/nfsd/nfsv4leasetime
    rpc.nfsd 4
    rpc.mountd
    # The file system above is the root of what version 4 shows; the host's own cannot be exported.
    exportfs -o ro,no_subtree_check,fsid=0 '*:/run/export'
    exportfs -o rw,no_root_squash,no_subtree_check,fsid=1 '*:/run/export/kv'
    exportfs -o rw,no_root_squash,no_subtree_check,fsid=2 '*:/run/export/small'
    exportfs -o rw,all_squash,anonuid=1234,anongid=1234,no_subtree_check,fsid=3 '*:/run/export/quota'
    # A host name of its own makes a client of its own; mounting from the network namespace alone keeps one tree of mounts.
    on() { nsenter --net=/run/netns/$1 unshare --uts sh -c "hostname client-$1; mount -t nfs -o '$2' 10.0.0.1:$3 $4"; }
    soft=soft,timeo=10,retrans=2
    on a vers=4.2,$soft,lookupcache=positive /kv /run/a
    on b vers=4.2,$soft,lookupcache=positive /kv /run/b
    on b vers=4.2,$soft,nosharecache /kv /run/default
    on a vers=4.2,$soft,lookupcache=positive,nosharecache /small /run/small
    on a vers=4.2,$soft,lookupcache=positive,nosharecache /quota /run/quota
    on b vers=3,nolock,$soft,lookupcache=positive,nosharecache /run/export/kv /run/old
}

(boot)
if [ $? = 0 ]; then  # as a condition itself it would run without `set -e`
    cd "$REPOSITORY"
    mapfile -t arguments </mnt/arguments
    [ -n "${arguments[0]}" ] || arguments=()
    mount -o remount,rw /mnt
    : >/mnt/began
    "$PYTHON" -m pytest -p no:cacheprovider -q --timeout 300 --color no --basetemp /run/a/tests -o addopts= \
        --import-mode=importlib tests/uml/inside "${arguments[@]}"
    echo $? >/mnt/status
fi
sync
echo o >/proc/sysrq-trigger
sleep 10
