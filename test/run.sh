#!/bin/sh
# npm test: installs, builds, and runs every test, those on the real kernel included (each in a private namespace).
# Prints one line for each stage; the output of a stage only when it failed. `npm test -- NAME...` runs only the
# stages so named.
set -u
cd "$(dirname "$0")/.."
. deploy/prepare.sh

# Tools that the tests judge by, as `command:Debian package`.
ORACLES='nft:nftables ip:iproute2 strace:strace unshare:util-linux'

find_oracles() {
  missing=''
  for oracle in $ORACLES; do
    PATH="$PATH:/usr/sbin:/sbin" command -v "${oracle%%:*}" >/dev/null || missing="$missing ${oracle#*:}"
  done
  [ -n "$missing" ] || return 0
  install="apt-get install -y --no-install-recommends$missing"
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    fail "The tests need a few system packages; as root: apt-get update && $install"
  fi
  step 'reading the package lists' apt-get update
  step "installing$missing" env DEBIAN_FRONTEND=noninteractive $install
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
  [ -z "$build_pid" ] || kill -TERM "-$build_pid" 2>/dev/null
  [ -z "$stage_pid" ] || kill -TERM "-$stage_pid" 2>/dev/null
  rm -rf "$logs"
  exit 130
}

# stage NAME SECONDS COMMAND...: at most so many seconds. In a process group of its own, so that nothing it started is
# left behind.
stage() {
  stage_name=$1
  stage_limit=$2
  shift 2
  case " $only " in '  ' | *" $stage_name "*) ;; *) return 0 ;; esac
  stage_log=$logs/$stage_name.log
  stage_start=$(date +%s)
  setsid timeout -k 10 "$stage_limit" "$@" >"$stage_log" 2>&1 </dev/null &
  stage_pid=$!
  wait "$stage_pid"
  stage_status=$?
  stage_pid=''
  stage_took=$(($(date +%s) - stage_start))
  if [ "$stage_status" = 0 ]; then
    printf 'ok    %-14s %4d s  %s\n' "$stage_name" "$stage_took" "$(summary "$stage_log")"
    return 0
  fi
  failed="$failed $stage_name"
  printf 'FAIL  %-14s %4d s  exit code %d: %s\n' "$stage_name" "$stage_took" "$stage_status" "$*"
  # What failed comes first: whoever keeps only the beginning of this has it.
  grep -aE -A 14 '^ *FAIL |^not ok ' "$stage_log" | head -n 200
  echo "--- all of it:"
  cat "$stage_log"
}

# What vitest counted, if it was vitest; what was skipped, if a stage says so.
summary() {
  sed 's/\x1b\[[0-9;]*m//g' "$1" | sed -n -e 's/^ *Tests  *\([0-9].*\)/\1/p' -e '/^skipped: /p' | tail -n 1
}

only=$*
failed=''
stage_pid=''
build_pid=''
export PATH="$PWD/node_modules/.bin:$PATH:/usr/sbin:/sbin"
export NO_COLOR=1
prepare
find_oracles
check_namespaces
logs=$(mktemp -d)
trap stop INT TERM
build_reference

stage types 120 tsc -p .
stage format 60 biome format
stage lint 60 npm run -s lint
stage unit 300 vitest run --project unit
stage native 120 sh test/native/run.sh
stage addon-asan 300 sh test/native/asan.sh
stage contract 300 unshare -Urnm vitest run --project contract
stage kernel 300 unshare -Urnm vitest run --project kernel
stage scenarios 600 unshare -Urnm vitest run --project scenarios
stage faults 1200 unshare -Urnm vitest run --project faults
stage churn 150 env KPROBE_CHURN_SECONDS=20 unshare -Urnm vitest run --project churn
stage sim 600 env KPROBE_SEEDS=2000 vitest run --project sim
[ -z "$build_pid" ] || wait "$build_pid"
build_pid=''
stage reference 2400 sh test/reference/run.sh

rm -rf "$logs"
[ -z "$failed" ] || fail "failed:$failed"
echo 'everything passed'
