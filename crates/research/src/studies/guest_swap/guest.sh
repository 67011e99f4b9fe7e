# What the guest of the study `guest-swap` does: turns on the swap that the kernel's command line names, and runs both jobs.
for word in $($box cat /proc/cmdline); do
    case "$word" in
    study.*) eval "${word#study.}" ;;
    esac
done
case "$swap" in
disk)
    $box mkswap /dev/vda >/dev/null && $box swapon /dev/vda
    ;;
ramdisk)
    # All of its memory at once: else the jobs would have it until it is swapped to.
    $box insmod /later/brd.ko rd_nr=1 rd_size=$((ramdisk_mib * 1024))
    $box dd if=/dev/zero of=/dev/ram0 bs=1M count="$ramdisk_mib" 2>/dev/null
    $box mkswap /dev/ram0 >/dev/null && $box swapon /dev/ram0
    ;;
esac
echo "free_kib $($box awk '/^MemFree/ { print $2 }' /proc/meminfo)"
echo "swap_areas $($box tail -n +2 /proc/swaps | $box wc -l)"
for job in grep group-by; do
    /bin/guest_jobs "$job" "$size_mib" || echo "the job $job ended with $?"
done
