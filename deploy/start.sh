#!/bin/sh
# npm start: installs, builds, and runs kprobe on a copy of the example objects (examples/), on the real kernel but in a private user and
# network namespace: no root needed, and nothing of this machine is touched. Arguments go to `kprobe run`.
set -eu
cd "$(dirname "$0")/.."
. deploy/prepare.sh

prepare
command -v unshare >/dev/null || fail 'npm start needs unshare, from the package util-linux.'
unshare -Urn true 2>/dev/null ||
  fail 'npm start runs kprobe in a private user and network namespace, which this machine forbids (unshare -Urn true); allow unprivileged user namespaces (sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns).'

copy_examples
# exec, so that signals reach kprobe itself and its exit code is ours.
# /run belongs to the machine, which this namespace cannot write.
exec unshare -Urn node dist/kprobe.mjs run --source=file:examples --hostname-override=example-node --admin-socket= "$@"
