#!/bin/sh
# npm test: installs, builds, and runs every test, those on the real kernel included (each in a private namespace).
# Prints one line for each stage; the output of a stage only when it failed. `npm test -- NAME...` runs only the
# stages so named.
set -u
cd "$(dirname "$0")/.."
. deploy/prepare.sh

# Tools that the tests judge by, as `command:Debian package`.
ORACLES='nft:nftables iptables-nft:iptables busybox:busybox-static ip:iproute2 ipset:ipset strace:strace unshare:util-linux'
# What the stage `vm` needs besides; where that cannot be had, it is skipped.
GUEST_TOOLS='qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio depmod:kmod ipvsadm:ipvsadm conntrack:conntrack'

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

find_guest_tools() {
  case " $only " in '  ' | *' vm '*) ;; *) return 0 ;; esac
  missing=$(missing_of "$GUEST_TOOLS")
  [ -n "$missing" ] && [ "${KPROBE_VM:-}" != off ] && can_install || return 0
  (install_debian "$missing") || echo 'without these, the stage vm skips' >&2
}

check_namespaces() {
  unshare -Urnm true 2>/dev/null ||
    fail 'The kernel tests need private user, network and mount namespaces, which this machine forbids (unshare -Urnm true); allow unprivileged user namespaces (sysctl user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns).'
}

# The real control plane takes minutes to build where it was never built: beside the first stages, and behind them.
build_reference() {
  case " $only " in '  ' | *' reference '*) ;; *) return 0 ;; esac
  setsid nice -n 19 node test/reference/build.mjs >"$logs/reference-build.log" 2>&1 </dev/null &
  build_pid=$!
}

stop() {
  for group in $build_pid $(cat "$logs"/*.pid 2>/dev/null); do kill -TERM "-$group" 2>/dev/null; done
  wait
  rm -rf "$logs"
  exit 130
}

# stage_of NAME: the most seconds that a stage may take, and its command.
stage_of() {
  case $1 in
    types) at_most 120 tsc -p . ;;
    format) at_most 60 biome format ;;
    lint) at_most 60 npm run -s lint ;;
    unit) at_most 600 vitest run --project 'unit*' ;;
    native) at_most 120 sh test/native/run.sh ;;
    addon-asan) at_most 300 sh test/native/asan.sh ;;
    contract) at_most 600 unshare -Urnm vitest run --project contract ;;
    kernel) at_most 900 unshare -Urnm vitest run --project kernel ;;
    scenarios) at_most 600 unshare -Urnm vitest run --project scenarios ;;
    faults) at_most 1200 unshare -Urnm vitest run --project faults ;;
    churn) at_most 600 env KPROBE_CHURN_SECONDS=20 unshare -Urnm vitest run --project churn ;;
    sim) at_most 900 env KPROBE_SEEDS=2000 nice -n 19 vitest run --project sim ;;
    reference) at_most 2400 sh test/reference/run.sh ;;
    vm) at_most 1500 node test/vm/run.mjs ;;
    *) fail "There is no stage $1." ;;
  esac
}

at_most() {
  exec setsid timeout -k 10 "$@"
}

# together STAGE...: runs them side by side, and reports each when it ends.
together() {
  running=''
  for name in "$@"; do
    case " $only " in '  ' | *" $name "*) ;; *) continue ;; esac
    running="$running $name"
    begin "$name"
  done
  while [ -n "$running" ]; do
    sleep 0.2
    for name in $running; do
      [ -s "$logs/$name.end" ] || continue
      running=$(for other in $running; do [ "$other" = "$name" ] || printf ' %s' "$other"; done)
      report "$name" $(cat "$logs/$name.end")
    done
  done
}

# begin STAGE: in a process group of its own, so that nothing it started is left behind.
begin() {
  {
    began=$(date +%s)
    stage_of "$1" >"$logs/$1.log" 2>&1 </dev/null &
    echo $! >"$logs/$1.pid"
    wait $!
    status=$?
    kill -KILL "-$(cat "$logs/$1.pid")" 2>/dev/null
    rm "$logs/$1.pid"
    echo "$status $(($(date +%s) - began))" >"$logs/$1.end"
  } &
}

# report STAGE STATUS SECONDS
report() {
  if [ "$2" = 0 ]; then
    printf 'ok    %-14s %4d s  %s\n' "$1" "$3" "$(summary "$logs/$1.log")"
    return 0
  fi
  failed="$failed $1"
  printf 'FAIL  %-14s %4d s  exit code %d: npm test -- %s\n' "$1" "$3" "$2" "$1"
  # What failed comes first: whoever keeps only the beginning of this has it.
  grep -aE -A 14 '^ *FAIL |^not ok ' "$logs/$1.log" | head -n 200
  echo '--- all of it:'
  cat "$logs/$1.log"
}

# What vitest counted, if it was vitest; what was skipped, if a stage says so.
summary() {
  sed 's/\x1b\[[0-9;]*m//g' "$1" | sed -n -e 's/^ *Tests  *\([0-9].*\)/\1/p' -e '/^skipped: /p' | tail -n 1
}

only=$*
failed=''
build_pid=''
export PATH="$PWD/node_modules/.bin:$PATH:/usr/sbin:/sbin"
export NO_COLOR=1
prepare
find_oracles
find_guest_tools
check_namespaces
logs=$(mktemp -d)
trap stop INT TERM
build_reference

# What waits goes beside what computes: the control plane waits most of the time, the guest never.
together types format lint native unit addon-asan contract kernel scenarios
together faults sim
[ -z "$build_pid" ] || wait "$build_pid"
build_pid=''
together churn reference vm

for name in $only; do [ -e "$logs/$name.log" ] || failed="$failed $name (there is no such stage)"; done
rm -rf "$logs"
[ -z "$failed" ] || fail "failed:$failed"
echo 'everything passed'
