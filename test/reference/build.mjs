#!/usr/bin/env node
// Builds etcd, kube-apiserver, kube-proxy, kubectl and the controller of EndpointSlices from their Go modules
// (control-plane/), each once per version:
//   node test/reference/build.mjs           builds what is missing
//   node test/reference/build.mjs --where   prints as JSON where each is, or why not; builds nothing
// Binaries in $KUBEBUILDER_ASSETS come first; the rest goes to $XDG_CACHE_HOME (~/.cache). Exit code 3: skipped.
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import {
  buildPrograms,
  CACHE,
  findProgram,
  kubernetesFlags,
  requiredVersion,
  skip,
} from '../support/go-programs.mjs'

const MODULES = fileURLToPath(new URL('control-plane/', import.meta.url))
const ETCD_MODULE = join(MODULES, 'etcd')
const kubernetes = requiredVersion(MODULES, 'k8s.io/kubernetes')
const etcd = requiredVersion(ETCD_MODULE, 'go.etcd.io/etcd/server/v3')
const folder = join(CACHE, 'reference', `kubernetes-${kubernetes}-etcd-${etcd}`)
const PROGRAMS = [
  ...[
    ['kube-proxy', './kube-proxy'],
    ['kube-apiserver', './kube-apiserver'],
    ['endpointslice-controller', './endpointslice-controller'],
    ['kubectl', 'k8s.io/kubernetes/cmd/kubectl'],
  ].map(([name, main]) => ({ name, module: MODULES, main, ldflags: kubernetesFlags(kubernetes) })),
  { name: 'etcd', module: ETCD_MODULE, main: '.', ldflags: '-s -w' },
]

if (process.argv.includes('--where')) console.log(JSON.stringify(where()))
else process.exitCode = await build()

function where() {
  return Object.fromEntries(PROGRAMS.map(({ name }) => [name, find(name) ?? null]))
}

function find(name) {
  return findProgram(name, [process.env.KUBEBUILDER_ASSETS, folder])
}

async function build() {
  if (process.env.KPROBE_REFERENCE === 'off') return skip('KPROBE_REFERENCE is off')
  return buildPrograms({ programs: PROGRAMS.filter(({ name }) => find(name) === undefined), folder })
}
