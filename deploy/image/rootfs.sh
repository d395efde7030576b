#!/bin/sh
# rootfs.sh FOLDER NODE: puts the root file system of the image into FOLDER: the Node binary, the shared libraries that
# it and the addon load, dist/, and the commands kprobe and kube-proxy. Run after `npm run build`, from the top folder.
set -eu

root=$1
node=$2
[ -e dist/kprobe.mjs ] && [ -e dist/kprobe.node ] || { echo 'dist/ is incomplete: npm run build' >&2; exit 1; }

mkdir -p "$root/usr/bin" "$root/opt/kprobe" "$root/etc" "$root/tmp" "$root/run/kprobe" "$root/proc" "$root/sys" "$root/dev"
cp "$node" "$root/usr/bin/node"
cp -R dist/. "$root/opt/kprobe/"
# For programs that import kprobe, of which there is none in here.
rm -rf "$root/opt/kprobe/lib" "$root/opt/kprobe/types"
chmod 1777 "$root/tmp"

mkdir -p "$root/usr/local/bin"
gcc -std=c11 -Os -Wall -Wextra -Werror -static -s -o "$root/usr/local/bin/kprobe" deploy/image/launcher.c
cp "$root/usr/local/bin/kprobe" "$root/usr/local/bin/kube-proxy"

# ldd prints `name => path (address)`, and the loader itself as `path (address)`.
for file in "$node" dist/kprobe.node; do
  ldd "$file" | awk '$2 == "=>" && $3 ~ /^\// { print $3 } $1 ~ /^\// { print $1 }'
done | sort -u | while read -r library; do
  mkdir -p "$root$(dirname "$library")"
  cp -L "$library" "$root$library"
done

printf 'root:x:0:0:root:/:/nonexistent\nkprobe:x:65532:65532:kprobe:/:/nonexistent\n' >"$root/etc/passwd"
printf 'root:x:0:\nkprobe:x:65532:\n' >"$root/etc/group"
printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"
