# Sourced by deploy/start.sh and test/run.sh, from the top folder: installs and builds what is missing or out of date.
# Plain sh, since nothing of the project can be expected to run before this.

fail() {
  printf '%s\n' "$*" >&2
  exit 1
}

# step TEXT COMMAND...: one line while it runs; its output only when it fails.
step() {
  step_text=$1
  shift
  step_log=$(mktemp)
  printf '%s ... ' "$step_text" >&2
  if "$@" >"$step_log" 2>&1 </dev/null; then
    echo done >&2
    rm -f "$step_log"
  else
    step_status=$?
    echo "failed ($*: exit code $step_status)" >&2
    cat "$step_log" >&2
    rm -f "$step_log"
    exit 1
  fi
}

# newer_than FILE PATH...: is FILE missing, or anything below PATH newer? Folders count: a removed file changes them.
newer_than() {
  newer_file=$1
  shift
  [ ! -e "$newer_file" ] || [ -n "$(find "$@" -newer "$newer_file" -print -quit)" ]
}

check_tools() {
  command -v node >/dev/null || fail 'kprobe needs Node.js 20 or newer (Debian 12: https://nodejs.org/en/download).'
  node_major=$(node -p 'process.versions.node.split(".")[0]')
  [ "$node_major" -ge 20 ] ||
    fail "kprobe needs Node.js 20 or newer; this is $(node --version). Install one: https://nodejs.org/en/download"
  command -v npm >/dev/null || fail 'kprobe is built with npm, which comes with Node.js; there is none in PATH.'
}

# --ignore-scripts: no dependency needs its install script, so none gets to run one.
install_packages() {
  if newer_than node_modules/.package-lock.json package-lock.json; then
    [ ! -L node_modules ] ||
      fail "node_modules is a link to $(readlink node_modules), which npm ci would empty; run npm ci there, or remove the link."
    step 'installing packages' npm ci --ignore-scripts --no-audit --no-fund
  fi
}

build_all() {
  if newer_than build/Release/kprobe.node native binding.gyp; then
    step 'building the addon' npm run -s build:native
    touch build/Release/kprobe.node
  fi
  if newer_than dist/program.js src deploy/build.mjs deploy/loader.mjs deploy/keep-code.mjs deploy/own-length.mjs package.json build/Release/kprobe.node ||
    [ ! -e node_modules/.bin/kprobe ] || [ ! -e dist/kprobe.node ]; then
    step 'building the command' npm run -s build:bundle
  fi
  if newer_than dist/types/library/index.d.ts src deploy/build-library.mjs deploy/declarations.mjs package.json; then
    step 'building the library' npm run -s build:library
  fi
}

# npm start serves a copy, so that trying things out changes no tracked file. What is in it already stays.
copy_examples() {
  mkdir -p examples
  for file in deploy/examples/*.yaml deploy/examples/*.json; do
    [ -e "examples/${file##*/}" ] || cp "$file" examples/
  done
}

prepare() {
  check_tools
  install_packages
  build_all
}
