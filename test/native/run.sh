#!/bin/sh
# The addon's POSIX half: static analysis of all C, then its own test program under ASan and UBSan, in a private
# network namespace.
set -eu
cd "$(dirname "$0")/../.."

out=.cache/native-test
cc=${CC:-cc}
warnings='-std=c11 -D_GNU_SOURCE -Wall -Wextra -Wconversion -Wshadow -Werror'
mkdir -p "$out"

# clang has no -fanalyzer.
if "$cc" -fanalyzer -x c -c -o "$out/empty.o" /dev/null 2>/dev/null; then
  headers=$(node -p 'require("node:path").resolve(process.execPath, "../../include/node")')
  $cc $warnings -O2 -fanalyzer -c -o "$out/netlink_socket.o" native/netlink_socket.c
  if [ -e "$headers/node_api.h" ]; then
    # Callbacks must take what libuv and Node-API hand them.
    $cc $warnings -Wno-unused-parameter -O2 -fPIC -fanalyzer -isystem "$headers" -c -o "$out/binding.o" native/binding.c
  fi
fi

$cc $warnings -g -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all \
  -Wl,--wrap=send,--wrap=recvmsg,--wrap=setsockopt,--wrap=poll \
  -o "$out/netlink_socket_test" test/native/netlink_socket_test.c native/netlink_socket.c
unshare -Urn "$out/netlink_socket_test"
