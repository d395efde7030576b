# The first process behind /init: makes the guest a plain Debian machine with one root shell, runs the job, writes down its
# exit code, and switches the machine off. $job is the folder that the guest shares with run.mjs.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
job=/run/kprobe-vm
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t cgroup2 cgroup /sys/fs/cgroup
mkdir -p /dev/pts /dev/shm /run/netns
mount -t devpts devpts /dev/pts
mount -t tmpfs tmpfs /dev/shm
ln -s /proc/self/fd /dev/fd
hostname kprobe-vm
ip link set lo up

# Where modprobe looks, for us and for the kernel itself: what a stock machine loads on demand is loaded on demand here.
release=$(uname -r)
rm -rf "/lib/modules/$release"
mkdir -p /lib/modules
ln -s "$(cat $job/modules)" "/lib/modules/$release"
modprobe -a $(cat $job/load) || echo 'kprobe-vm: not every module loads' >&2

cd "$(cat $job/folder)" || exit 1
# The port takes one writer at a time, which opens it once. Behind its last byte the host ends the guest: it knows best when it
# has read everything.
{
  sh $job/command
  echo $? >$job/exit-code
  printf '\004'
} 2>&1 </dev/null | cat >/dev/vport0p1
sleep 60
busybox poweroff -f
