#!/bin/sh
# npm run test:browser [-- VITEST ARGUMENT...]: the web page in Debian's chromium. Without one, it says that it skips.
set -u
cd "$(dirname "$0")/../.."
export PATH="$PWD/node_modules/.bin:$PATH"
[ -x /usr/lib/chromium/chromium ] || {
  echo 'skipped: there is no chromium; as root: apt-get install -y --no-install-recommends chromium'
  exit 0
}
exec unshare -Urnm vitest run --reporter=verbose --project browser "$@"
