#!/usr/bin/env node
// Builds etcd, kube-apiserver, kube-proxy, kubectl and the controller of EndpointSlices from their Go modules
// (control-plane/), helm (helm/), and what checks rules and workflows (checks/), each once per version:
//   node test/reference/build.mjs           builds what is missing
//   node test/reference/build.mjs --where   prints as JSON where each is, or why not; builds nothing
// Binaries in $KUBEBUILDER_ASSETS come first; the rest goes to $XDG_CACHE_HOME (~/.cache). Exit code 3: skipped. With
// PROJECT=reference it leaves out helm and the checks, which only the long tests need.
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

const moduleOf = name => fileURLToPath(new URL(`${name}/`, import.meta.url))
const [MODULES, ETCD_MODULE, HELM_MODULE, CHECKS_MODULE] = [
  'control-plane',
  'control-plane/etcd',
  'helm',
  'checks',
].map(moduleOf)
const kubernetes = requiredVersion(MODULES, 'k8s.io/kubernetes')
const etcd = requiredVersion(ETCD_MODULE, 'go.etcd.io/etcd/server/v3')
const helm = requiredVersion(HELM_MODULE, 'helm.sh/helm/v3')
const prometheus = requiredVersion(CHECKS_MODULE, 'github.com/prometheus/prometheus')
const actionlint = requiredVersion(CHECKS_MODULE, 'github.com/rhysd/actionlint')
const stripped = (name, module, main) => ({ name, module, main, ldflags: '-s -w' })

/** Each with the folder of its versions. */
const CORE = {
  folder: join(CACHE, 'reference', `kubernetes-${kubernetes}-etcd-${etcd}`),
  programs: [
    ...[
      ['kube-proxy', './kube-proxy'],
      ['kube-apiserver', './kube-apiserver'],
      ['endpointslice-controller', './endpointslice-controller'],
      ['kubectl', 'k8s.io/kubernetes/cmd/kubectl'],
    ].map(([name, main]) => ({ name, module: MODULES, main, ldflags: kubernetesFlags(kubernetes) })),
    stripped('etcd', ETCD_MODULE, '.'),
  ],
}
/** For the long tests alone. */
const LONG = [
  {
    folder: join(CACHE, 'reference', `helm-${helm}-kubernetes-${kubernetes}`),
    programs: [
      {
        name: 'helm',
        module: HELM_MODULE,
        main: 'helm.sh/helm/v3/cmd/helm',
        ldflags: helmFlags(helm, kubernetes),
      },
    ],
  },
  {
    folder: join(CACHE, 'reference', `prometheus-${prometheus}-actionlint-${actionlint}`),
    programs: [
      stripped('check-rules', CHECKS_MODULE, './rules'),
      stripped('firing-alerts', CHECKS_MODULE, './firing'),
      stripped('actionlint', CHECKS_MODULE, 'github.com/rhysd/actionlint/cmd/actionlint'),
    ],
  },
]

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
  const found = [CORE, ...LONG].flatMap(({ folder, programs }) =>
    programs.map(({ name }) => [name, find(name, folder) ?? null]),
  )
  return Object.fromEntries(found)
}

function find(name, folder) {
  return findProgram(name, [process.env.KUBEBUILDER_ASSETS, folder])
}

async function build() {
  if (process.env.KPROBE_REFERENCE === 'off') return skip('KPROBE_REFERENCE is off')
  const status = await buildMissing(CORE)
  if (status !== 0 || process.env.PROJECT === 'reference') return status
  // Where there is no way to its modules, the tests of a program are skipped, and no others.
  for (const each of LONG) if (![0, SKIPPED].includes(await buildMissing(each))) return 1
  return 0
}

function buildMissing({ folder, programs }) {
  return buildPrograms({ programs: programs.filter(({ name }) => find(name, folder) === undefined), folder })
}
