# Sets the guest up as its settings say, then runs the commands that come through the control channel.
box=/run/virtual-machine/busybox
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=linux LANG=C.UTF-8
. /share/settings

say() { echo "virtual machine: $*" >/dev/console; }

# What systemd mounts, where it is the first program.
mount_all() {
    $box mkdir -p /dev/pts /dev/shm /dev/mqueue /run/lock
    $box mount -t devpts -o mode=620,ptmxmode=666 devpts /dev/pts
    $box mount -t tmpfs -o mode=1777 shm /dev/shm
    $box mount -t cgroup2 cgroup2 /sys/fs/cgroup || say "no cgroup version 2"
    for controller in memory cpu io pids; do
        echo "+$controller" >/sys/fs/cgroup/cgroup.subtree_control || say "no controller $controller"
    done
    $box mount -t debugfs debugfs /sys/kernel/debug
    $box mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null
}

mount_tmp() {
    [ -z "$memory_on_tmp" ] || $box mount -t tmpfs -o mode=1777 tmp /tmp
}

load_modules() {
    tree="/usr/lib/modules/$($box uname -r)"
    $box mkdir -p "$tree"
    $box mount --bind "$modules_directory" "$tree" || say "no modules"
    for module in $modules; do
        modprobe "$module" || say "the module $module was not loaded"
    done
}

# Disks are vda, vdb and so on, in the order of the settings; those with files are mounted at /disk, /disk2 and so on.
mount_disks() {
    letters="a b c d e f"
    number=1
    for kind in $disks; do
        letter=${letters%% *} letters=${letters#* }
        if [ "$kind" = files ]; then
            place=/disk$number
            [ $number = 1 ] && place=/disk
            $box mkdir -p $place
            $box mount -t ext4 -o noatime /dev/vd$letter $place || say "the disk vd$letter was not mounted"
        fi
        number=$((number + 1))
    done
}

set_network() {
    $box hostname "$name"
    $box ip link set lo up
    [ -n "$address" ] || return
    modprobe virtio_net
    $box ip link set eth0 mtu "$frame_bytes" up
    $box ip addr add "$address" dev eth0
}

# Each command has its script, output and errors in the share; its end goes through the channel. It may be killed for
# memory like any program, this shell may not.
run_command() {
    $box setsid /bin/sh -c 'echo 0 >/proc/self/oom_score_adj; exec /bin/sh "$1"' sh "/share/$1.sh" \
        </dev/null >"/share/$1.output" 2>"/share/$1.errors" 3>&-
    echo "$1 $?" >&3
}

end_machine() {
    $box sync
    $box swapoff -a 2>/dev/null
    $box umount /disk* 2>/dev/null
    # Writing to this port ends QEMU with a status that nothing else has.
    $box printf '\020' | $box dd of=/dev/port bs=1 seek=1281 conv=notrunc 2>/dev/null
}

[ -n "$systemd" ] || mount_all
mount_tmp
load_modules
mount_disks
set_network
if [ -n "$shell" ]; then
    echo "A virtual machine with Linux $($box uname -r). The host's files are read-only below a layer in memory; /share is"
    echo "$share on the host. Ends with the shell, or with Ctrl-a x."
    cd "$directory" 2>/dev/null || cd /
    $box setsid $box cttyhack $shell
    end_machine
fi
echo -1000 >/proc/self/oom_score_adj
for port in /dev/vport*; do exec 3<>"$port"; done
echo ready >&3
while read -r verb number <&3; do
    case "$verb" in
    run) run_command "$number" & ;;
    end) end_machine ;;
    esac
done
