#!/bin/busybox sh
# First program of the guest: makes the host's file system, read-only, and a layer in memory above it the root.
box=/bin/busybox
$box mkdir -p /proc /sys /dev /host /layer /root
$box mount -t proc proc /proc
$box mount -t sysfs sysfs /sys
$box mount -t devtmpfs devtmpfs /dev
for module in /modules/*.ko; do
    $box insmod "$module" || echo "virtual machine: $module was not loaded"
done
# Messages are small, so that a machine without large free blocks of memory still reads its programs.
nine_p=trans=virtio,version=9p2000.L,msize=32768
# The host's files do not change while a test runs, so what was read may be kept.
$box mount -t 9p -o "ro,$nine_p,cache=loose" host /host || echo "virtual machine: no root"
$box mount -t tmpfs -o mode=755 layer /layer
$box mkdir /layer/upper /layer/work
$box mount -t overlay -o lowerdir=/host,upperdir=/layer/upper,workdir=/layer/work root /root
$box mkdir -p /root/share /root/disk /root/proc /root/sys /root/dev /root/run /root/etc
# What this folder holds is changed by both sides at any time.
$box mount -t 9p -o "$nine_p,cache=none" share /root/share || echo "virtual machine: no share"
for directory in proc sys dev; do
    $box mount --move /$directory /root/$directory
done
$box mount -t tmpfs -o mode=755 run /root/run
$box mkdir /root/run/virtual-machine
$box cp $box /root/run/virtual-machine/busybox
$box cp /root/share/main.sh /root/run/virtual-machine/main.sh
. /root/share/settings
if [ -n "$systemd" ]; then
    # Its own units are the host's; which of them run, and what is mounted, is not.
    $box mount -t tmpfs -o mode=755 units /root/etc/systemd/system
    $box cp /root/share/machine.service /root/etc/systemd/system/machine.service
    : >/root/etc/fstab
    # At its boot it empties /tmp, which has the host's files here: minutes of work, and the tests' programs are gone. A
    # file of the same name replaces its rules.
    $box mkdir -p /root/etc/tmpfiles.d
    : >/root/etc/tmpfiles.d/tmp.conf
    # On a host that is a container itself this says so, and would be believed.
    $box rm -f /root/.dockerenv
    $box tr -d - </root/proc/sys/kernel/random/uuid >/root/etc/machine-id
    exec $box switch_root /root "$systemd"
fi
# Busybox's init reaps the orphans of tests.
echo '::once:/run/virtual-machine/busybox sh /run/virtual-machine/main.sh' >/root/etc/inittab
exec $box switch_root /root /run/virtual-machine/busybox init
