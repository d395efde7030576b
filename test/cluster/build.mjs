#!/usr/bin/env node
// Builds what a node and its tests need beside the programs of test/reference: programs from Go modules (programs/), each
// once per version, and the images of upstream's tests. As root, with Debian's packages mmdebstrap, busybox-static and
// libseccomp-dev.
//   node test/cluster/build.mjs           builds what is missing: 20 to 40 minutes on two processors
//   node test/cluster/build.mjs --where   prints as JSON the folders and what is missing in them; builds nothing
// It goes to $XDG_CACHE_HOME/kprobe (~/.cache). Exit code 3: skipped, with the reason.
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import {
  buildPrograms,
  CACHE,
  findProgram,
  kubernetesFlags,
  moduleFolder,
  requiredVersion,
  skip,
} from '../support/go-programs.mjs'
import { buildImages, COREDNS, imagesFolder } from './images.mjs'

const module = name => fileURLToPath(new URL(`programs/${name}`, import.meta.url))
const VERSIONS = {
  kubernetes: requiredVersion(module('kubernetes'), 'k8s.io/kubernetes'),
  containerd: requiredVersion(module('containerd'), 'github.com/containerd/containerd/v2'),
  runc: requiredVersion(module('runc'), 'github.com/opencontainers/runc'),
  cni: requiredVersion(module('cni'), 'github.com/containernetworking/plugins'),
  coredns: requiredVersion(module('coredns'), 'github.com/coredns/coredns'),
}
const CONTAINERD = 'github.com/containerd/containerd/v2'
const CNI = 'github.com/containernetworking/plugins/plugins'

const kubernetes = (name, main, more = {}) => ({
  name,
  module: module('kubernetes'),
  main,
  ldflags: kubernetesFlags(VERSIONS.kubernetes),
  ...more,
})
const containerd = (name, tags) => ({
  name,
  module: module('containerd'),
  main: `${CONTAINERD}/cmd/${name}`,
  ldflags: `-s -w -X ${CONTAINERD}/version.Version=${VERSIONS.containerd}`,
  tags,
})
const plugin = main => ({
  name: main.split('/')[1],
  module: module('cni'),
  main: `${CNI}/${main}`,
  ldflags: '-s -w',
})

/** In the order in which they share most with what the stage `reference` has left in Go's cache. */
const PROGRAMS = [
  kubernetes('kubelet', 'k8s.io/kubernetes/cmd/kubelet'),
  kubernetes('kube-controller-manager', 'k8s.io/kubernetes/cmd/kube-controller-manager'),
  kubernetes('kube-scheduler', 'k8s.io/kubernetes/cmd/kube-scheduler'),
  containerd('containerd', 'no_btrfs no_zfs no_devmapper no_aufs no_tracing'),
  containerd('containerd-shim-runc-v2', 'no_tracing'),
  containerd('ctr', 'no_btrfs no_zfs no_tracing'),
  {
    name: 'runc',
    module: module('runc'),
    main: 'github.com/opencontainers/runc',
    ldflags: `-s -w -X main.version=${VERSIONS.runc.slice(1)} -linkmode external -extldflags -static`,
    tags: 'seccomp netgo osusergo',
  },
  ...['main/bridge', 'main/loopback', 'ipam/host-local', 'meta/portmap'].map(plugin),
  kubernetes('e2e.test', './e2e', { isTest: true }),
  kubernetes('ginkgo', 'github.com/onsi/ginkgo/v2/ginkgo'),
  kubernetes('agnhost', 'k8s.io/kubernetes/test/images/agnhost'),
  kubernetes('regression-issue-74839', 'k8s.io/kubernetes/test/images/regression-issue-74839'),
  { name: COREDNS, module: module('coredns'), main: '.', ldflags: '-s -w' },
]
const folder = join(
  CACHE,
  'cluster',
  Object.entries(VERSIONS)
    .map(([name, version]) => `${name}-${version}`)
    .join('-'),
)

/** In which folder, or file, Debian's packages put what is needed here. */
const PACKAGES = {
  '/usr/bin/mmdebstrap': 'mmdebstrap',
  '/usr/bin/busybox': 'busybox-static',
  '/usr/include/seccomp.h': 'libseccomp-dev',
}

if (process.argv.includes('--where')) console.log(JSON.stringify(where(), undefined, 2))
else process.exitCode = await build()

function where() {
  const missing = PROGRAMS.map(({ name }) => name).filter(name => findProgram(name, [folder]) === undefined)
  const images = imagesFolder(folder)
  return { folder, images, missing: [...missing, ...(existsSync(images) ? [] : ['images'])] }
}

async function build() {
  if (where().missing.length === 0) return 0
  if (process.getuid() !== 0) return skip('images can be built by root alone')
  const lacking = Object.entries(PACKAGES).filter(([file]) => !existsSync(file))
  if (lacking.length > 0) {
    const names = lacking.map(([, name]) => name).join(' ')
    return skip(`apt-get install -y --no-install-recommends ${names}`)
  }
  const status = await buildPrograms({ programs: PROGRAMS, folder })
  if (status !== 0) return status
  buildImages(folder, moduleFolder(module('kubernetes'), 'k8s.io/kubernetes'))
  return 0
}
