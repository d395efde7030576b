#!/bin/sh
# npm test: installs, builds, and runs every test, those on the real kernel included (each in a private namespace).
# test/stages runs them, `npm test -- NAME...` only those stages.
set -u
cd "$(dirname "$0")/.."
. deploy/prepare.sh

# Tools that the tests judge by, as `command:Debian package`.
ORACLES='nft:nftables iptables-nft:iptables busybox:busybox-static conntrack:conntrack ip:iproute2 ipset:ipset strace:strace unshare:util-linux'
# What the stage `vm` needs besides; where that cannot be had, it is skipped.
GUEST_TOOLS='qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio depmod:kmod ipvsadm:ipvsadm'

# missing_of LIST: the packages of the commands that are not here.
missing_of() {
  for tool in $1; do
    PATH="$PATH:/usr/sbin:/sbin" command -v "${tool%%:*}" >/dev/null || printf ' %s' "${tool#*:}"
  done
}

can_install() {
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null
}

install_debian() {
  step 'reading the package lists' apt-get update
  step "installing$1" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $1
}

find_oracles() {
  missing=$(missing_of "$ORACLES")
  [ -n "$missing" ] || return 0
  can_install ||
    fail "The tests need a few system packages; as root: apt-get update && apt-get install -y --no-install-recommends$missing"
  install_debian "$missing"
}

# find_tools_of STAGE LIST: installs what a stage needs besides, if it is to run; without, the stage skips.
find_tools_of() {
  case " $only " in '  ' | *' all '* | *" $1"*) ;; *) return 0 ;; esac
  missing=$(missing_of "$2")
  [ -n "$missing" ] && can_install || return 0
  (install_debian "$missing") || echo "without these, the stage $1 skips" >&2
}

check_namespaces() {
  unshare -Urnm true 2>/dev/null ||
    fail 'The kernel tests need private user, network and mount namespaces, which this machine forbids (unshare -Urnm true); allow unprivileged user namespaces (sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns).'
}

only=$*
export PATH="$PWD/node_modules/.bin:$PATH:/usr/sbin:/sbin"
export NO_COLOR=1
prepare
find_oracles
[ "${KPROBE_VM:-}" = off ] || find_tools_of vm "$GUEST_TOOLS"
find_tools_of browser chromium:chromium
check_namespaces
exec node test/stages/main.mjs "$@"
