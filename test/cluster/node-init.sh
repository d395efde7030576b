#!/bin/sh
# PID 1 of a node, in namespaces of its own (node.ts): mounts what containerd and kubelet write to, starts both, and
# waits for what is orphaned. NODE: name; FOLDER: what is written; CGROUP: the name of the node's cgroup; IMAGES: a
# store of containerd that has all images; NODE_IP.
set -eu
log() { echo "$*"; }

hostname "$NODE"
mount -t proc proc /proc
# A new sysfs shows the node's own network interfaces; cgroups are the machine's.
mkdir -p "$FOLDER/cgroup"
mount --rbind /sys/fs/cgroup "$FOLDER/cgroup"
umount -l /sys
mount -t sysfs sysfs /sys
mount --rbind "$FOLDER/cgroup" /sys/fs/cgroup
umount -l "$FOLDER/cgroup"

mount -t tmpfs tmpfs /run
mkdir -p /run/lock /run/netns
mount -t tmpfs tmpfs /var/lib
for each in kubelet containerd cni; do
  mkdir -p "$FOLDER/$each" "/var/lib/$each"
  mount --bind "$FOLDER/$each" "/var/lib/$each"
done
mkdir -p "$FOLDER/log"
mount --bind "$FOLDER/log" /var/log

# kubelet finds these as it wants them, and leaves those of the machine alone.
mkdir -p "$FOLDER/sysctl"
while read -r name value; do
  echo "$value" >"$FOLDER/sysctl/${name##*/}"
  mount --bind "$FOLDER/sysctl/${name##*/}" "/proc/sys/$name"
done <<EOF
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
EOF
mount --make-rshared /

# What an image is made of is only read: links will do. Databases are written.
if [ ! -e "$FOLDER/containerd/io.containerd.metadata.v1.bolt" ]; then
  cp -al "$IMAGES/." "$FOLDER/containerd/"
  find "$FOLDER/containerd" -maxdepth 2 -name '*.db' | while read -r file; do
    cp "$file" "$file.own"
    mv "$file.own" "$file"
  done
fi

ulimit -n "$(ulimit -H -n)"
containerd --config "$FOLDER/containerd.toml" >>"$FOLDER/containerd.log" 2>&1 &
tries=0
until ctr --address /run/containerd/containerd.sock version >/dev/null 2>&1; do
  tries=$((tries + 1))
  [ "$tries" -lt 300 ] || { log "containerd does not answer: $FOLDER/containerd.log"; exit 1; }
  sleep 0.2
done
# As its unit of systemd: it starts again when it has ended.
while :; do
  kubelet --config "$FOLDER/kubelet.json" --kubeconfig "$FOLDER/../$NODE.kubeconfig" --hostname-override "$NODE" \
    --node-ip "$NODE_IP" --root-dir /var/lib/kubelet >>"$FOLDER/kubelet.log" 2>&1 || sleep 1
done &
log started
while :; do
  sleep 3600 &
  wait $!
done
