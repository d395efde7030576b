#!/bin/sh
# The suites against the real control plane: builds what is missing, then runs them in a private namespace. Says in one
# line that it skipped them where Go and the binaries are missing. PROJECT: only this project of vitest.config.ts.
set -u
cd "$(dirname "$0")/../.."
node -e "import('./test/support/require-build.mjs').then(({ requireBuild }) => requireBuild())" || exit 1
node test/reference/build.mjs
case $? in
0) ;;
3) exit 0 ;;
*) exit 1 ;;
esac
exec unshare -Urnm node_modules/.bin/vitest run --project "${PROJECT:-reference*}" "$@"
