#!/bin/busybox sh
# First program of a guest that is nothing but one script: loads its modules, runs the script on the console, and ends
# the machine. QEMU is told to end in place of the restart.
box=/bin/busybox
$box mkdir -p /proc /sys /dev /tmp
$box mount -t proc proc /proc
$box mount -t sysfs sysfs /sys
$box mount -t devtmpfs devtmpfs /dev
exec >/dev/console 2>&1
for module in /modules/*.ko; do
    [ -e "$module" ] || continue
    $box insmod "$module" || echo "virtual machine: $module was not loaded"
done
. /script.sh
$box sync
# The line takes a moment to send its last words.
$box sleep 1
$box reboot -f
