#!/usr/bin/env node
// Builds etcd, kube-apiserver, kube-proxy, kubectl and the controller of EndpointSlices from their Go modules
// (control-plane/), and helm (helm/), each once per version:
//   node test/reference/build.mjs           builds what is missing
//   node test/reference/build.mjs --where   prints as JSON where each is, or why not; builds nothing
// Binaries in $KUBEBUILDER_ASSETS come first; the rest goes to $XDG_CACHE_HOME (~/.cache). Exit code 3: skipped. With
// PROJECT=reference it leaves helm out, which only the long tests need.
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import {
  buildPrograms,
  CACHE,
  findProgram,
  kubernetesFlags,
  requiredVersion,
  SKIPPED,
  skip,
} from '../support/go-programs.mjs'

const MODULES = fileURLToPath(new URL('control-plane/', import.meta.url))
const ETCD_MODULE = join(MODULES, 'etcd')
const HELM_MODULE = fileURLToPath(new URL('helm/', import.meta.url))
const kubernetes = requiredVersion(MODULES, 'k8s.io/kubernetes')
const etcd = requiredVersion(ETCD_MODULE, 'go.etcd.io/etcd/server/v3')
const helm = requiredVersion(HELM_MODULE, 'helm.sh/helm/v3')
const folder = join(CACHE, 'reference', `kubernetes-${kubernetes}-etcd-${etcd}`)
const helmFolder = join(CACHE, 'reference', `helm-${helm}-kubernetes-${kubernetes}`)
const PROGRAMS = [
  ...[
    ['kube-proxy', './kube-proxy'],
    ['kube-apiserver', './kube-apiserver'],
    ['endpointslice-controller', './endpointslice-controller'],
    ['kubectl', 'k8s.io/kubernetes/cmd/kubectl'],
  ].map(([name, main]) => ({ name, module: MODULES, main, ldflags: kubernetesFlags(kubernetes) })),
  { name: 'etcd', module: ETCD_MODULE, main: '.', ldflags: '-s -w' },
]
const HELM = {
  name: 'helm',
  module: HELM_MODULE,
  main: 'helm.sh/helm/v3/cmd/helm',
  ldflags: helmFlags(helm, kubernetes),
}

if (process.argv.includes('--where')) console.log(JSON.stringify(where()))
else process.exitCode = await build()

/** Without the version of Kubernetes, charts are rendered for 1.20. */
function helmFlags(version, kubernetesVersion) {
  const [major, minor] = kubernetesVersion.slice(1).split('.')
  const chartutil = 'helm.sh/helm/v3/pkg/chartutil'
  return [
    `-s -w -X helm.sh/helm/v3/internal/version.version=${version}`,
    `-X ${chartutil}.k8sVersionMajor=${major} -X ${chartutil}.k8sVersionMinor=${minor}`,
  ].join(' ')
}

function where() {
  const names = [...PROGRAMS, HELM].map(({ name }) => name)
  return Object.fromEntries(names.map(name => [name, find(name) ?? null]))
}

function find(name) {
  return findProgram(name, [process.env.KUBEBUILDER_ASSETS, folder, helmFolder])
}

async function build() {
  if (process.env.KPROBE_REFERENCE === 'off') return skip('KPROBE_REFERENCE is off')
  const status = await buildPrograms({
    programs: PROGRAMS.filter(({ name }) => find(name) === undefined),
    folder,
  })
  if (status !== 0 || process.env.PROJECT === 'reference') return status
  // Where there is no way to its modules, its tests alone are skipped.
  const ofHelm =
    find(HELM.name) === undefined ? await buildPrograms({ programs: [HELM], folder: helmFolder }) : 0
  return ofHelm === SKIPPED ? 0 : ofHelm
}
