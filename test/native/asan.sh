#!/bin/sh
# The addon's own tests under AddressSanitizer and UBSan: a build of its own, in a Node that preloads the sanitizer.
set -eu
cd "$(dirname "$0")/../.."

node native/build.mjs --san
# A compiler without the library prints the bare name back. Node's own leaks at exit are not ours to find.
asan=$(${CC:-cc} -print-file-name=libasan.so)
[ -e "$asan" ] || { echo "libasan.so, which the sanitizer build needs, is missing: install gcc's libasan" >&2; exit 1; }

KPROBE_TEST_ADDON=$PWD/.cache/native-san/build/Release/kprobe.node \
ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1 LD_PRELOAD=$asan \
  node node_modules/vitest/vitest.mjs run --project unit --pool=forks test/unit/netlink/native.test.ts test/unit/netlink/repeat.test.ts
