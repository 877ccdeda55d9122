#!/bin/sh
# Boots one host of the lab, as PID 1 of its own namespaces, in a copy of the machine's mounts.
# Usage: boot.sh FOLDER DISK SSHD
#   FOLDER  hostname, network (a batch for ip), keep (paths that stay visible) and etc/
#   DISK    becomes /home
set -eu
umask 022
folder=$1 disk=$2 sshd=$3
stage=/run/stage
keep=$(cat "$folder/keep")

# cover WITH DIR: WITH takes the place of DIR; of DIR only the paths in `keep` stay visible.
cover() {
    while read -r path; do
        case $path in
        "$2"/*)
            mkdir -p "$1${path#"$2"}"
            mount --rbind "$path" "$1${path#"$2"}"
            ;;
        esac
    done <<END
$keep
END
    mount --rbind "$1" "$2"
}

# /proc is still the machine's, so this is the PID the controller knows this process by.
read -r pid rest </proc/self/stat
echo "$pid"
mount -t proc proc /proc
cat "$folder/hostname" >/proc/sys/kernel/hostname
ip -batch "$folder/network"

mount -t tmpfs -o mode=755 lab "$stage"
mkdir "$stage/sys" "$stage/log" "$stage/root" "$stage/run" "$stage/run/sshd"
mkdir -m 1777 "$stage/tmp" "$stage/shm" "$stage/run/lock"

cat /proc/sys/kernel/random/uuid >"$stage/boot_id"
mount --bind "$stage/boot_id" /proc/sys/kernel/random/boot_id

# A sysfs shows the network namespace it was mounted in.
mount -t sysfs sysfs "$stage/sys"
mount --rbind /sys/fs/cgroup "$stage/sys/fs/cgroup"
mount --rbind "$stage/sys" /sys

for file in "$folder"/etc/*; do
    mount --bind "$file" "/etc/${file##*/}"
done
cover "$disk" /home
cover "$stage/root" /root
cover "$stage/log" /var/log
cover "$stage/shm" /dev/shm
cover "$stage/tmp" /tmp # last but one: FOLDER is below it
cover "$stage/run" /run # last: DISK and the stage are below it

exec "$sshd" -D -e -f /etc/ssh/sshd_config >&2
