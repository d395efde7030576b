import { createWriteStream, mkdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import type { Readable } from 'node:stream'
import { KEEPS_CLIENT } from '../scenarios/upstream/parts.ts'
import { UPSTREAM_SERVICES } from '../scenarios/upstream/services.ts'
import { kubeconfigOf } from './control-plane.ts'
import { interruptAttached } from './namespaces.ts'
import type { NodeTools } from './node.ts'
import { type Outcome, readGinkgoReport } from './report.ts'
import type { Site } from './site.ts'

/** A part of upstream's tests: which names it takes, and which of them it leaves. */
export interface Suite {
  readonly name: string
  readonly what: string
  readonly focus: string
  readonly skip: readonly string[]
}

/** What no set has: it is not a proxy's, or this cluster cannot have it. */
const NEVER = [
  '\\[Disruptive\\]',
  '\\[Provider:GCE\\]',
  'NetworkPolicy',
  'Netpol',
  ...['SCTPConnectivity', 'Ingress', 'Networking-IPv6', 'Networking-IPv4', 'Networking-DNS'].map(feature),
  ...['Networking-Performance', 'PerformanceDNS', 'ClusterUpgrade'].map(feature),
]

export const SUITES: readonly Suite[] = [
  {
    name: 'conformance',
    what: 'the conformance tests of Services',
    focus: '\\[sig-network\\] Services.*\\[Conformance\\]',
    skip: NEVER,
  },
  { name: 'services', what: 'all tests of Services', focus: '\\[sig-network\\] Services', skip: NEVER },
  {
    name: 'network',
    what: 'the rest of sig-network, without load balancers and localhost',
    focus: '\\[sig-network\\]',
    skip: [
      ...NEVER,
      feature('LoadBalancer'),
      feature('LocalhostNodePorts'),
      '\\[sig-network\\] Services',
      'Ingress',
      // They rewrite the DNS of the cluster, which other tests use at the same time.
      'DNS configMap',
      'Networking Granular Checks: Pods',
    ],
  },
  {
    name: 'lb',
    what: 'the tests of load balancers',
    focus: '\\[sig-network\\].*\\[Feature:LoadBalancer\\]',
    skip: NEVER,
  },
  {
    name: 'localhost',
    what: 'the tests of node ports at localhost, which iptables mode serves without a setting',
    focus: '\\[sig-network\\].*\\[Feature:LocalhostNodePorts\\]',
    skip: NEVER,
  },
]

/** Tests that ask for what a mode does not promise: in userspace mode, endpoints do not see the client. */
const OUTSIDE: Readonly<Record<string, readonly string[]>> = {
  userspace: UPSTREAM_SERVICES.filter(({ notInUserspace }) => notInUserspace === KEEPS_CLIENT).map(
    ({ title }) => title.replace(/[[\]]/g, '\\$&'),
  ),
}

/** The pattern of the names that a set leaves in this mode. */
export function skipOf({ skip }: Suite, mode: string): string {
  return [...skip, ...(OUTSIDE[mode] ?? [])].join('|')
}

function feature(name: string): string {
  return `\\[Feature:${name}\\]`
}

/** The pattern of a set's names, and of those with `only` before or after its last tag. */
export function focusOf({ focus }: Suite, only: string | undefined): string {
  if (only === undefined) return focus
  const [head = '', tag] = focus.split('.*')
  const its = `(${only})`
  return tag === undefined ? `${head}.*${its}` : `${head}.*(${its}.*${tag}|${tag}.*${its})`
}

export interface RunOptions {
  readonly suite: Suite
  /** Of the proxy. */
  readonly mode: string
  /** Tests at once. */
  readonly procs: number
  /** Only tests whose name has this pattern as well. */
  readonly only?: string | undefined
  /** Gets ginkgo's report, its log and the logs of failed tests. */
  readonly folder: string
  readonly progress: (words: string) => void
  readonly signal: AbortSignal
}

/** Runs upstream's e2e.test against the cluster, and gives what came of each test. */
export async function runSuite(
  site: Site,
  tools: NodeTools,
  options: RunOptions,
): Promise<readonly Outcome[]> {
  const { suite, folder, progress, signal } = options
  rmSync(folder, { recursive: true, force: true })
  mkdirSync(folder, { recursive: true })
  const log = join(folder, 'ginkgo.log')
  const child = tools.namespaces.attach(
    {
      file: tools.binaries.path('ginkgo'),
      args: ginkgoArguments(site, tools, options),
      env: {
        PATH: `${tools.binaries.searchPath}:${process.env.PATH ?? ''}:/usr/sbin:/sbin`,
        KUBECONFIG: kubeconfigOf(site, 'admin'),
      },
    },
    log,
  )
  if (child.stdout !== null) follow(child.stdout, log, progress)
  const ending = await new Promise<string>(resolve => {
    child.on('error', error => resolve(error.message))
    child.on('close', (code, by) => resolve(`exit code ${code ?? by}`))
    // It removes what its tests have made, and ends by itself.
    signal.addEventListener('abort', () => {
      interruptAttached(child)
      resolve('an interrupt')
    })
  })
  signal.throwIfAborted()
  const outcomes = readGinkgoReport(join(folder, 'report.json'))
  if (outcomes === undefined)
    throw new Error(`${suite.name}: ginkgo ended with ${ending} and no report: ${log}`)
  if (outcomes.length === 0) throw new Error(`${suite.name}: no test has run: ${log}`)
  return outcomes
}

function ginkgoArguments(
  site: Site,
  { binaries }: NodeTools,
  { suite, mode, procs, only, folder }: RunOptions,
): readonly string[] {
  const e2e = {
    kubeconfig: kubeconfigOf(site, 'admin'),
    provider: 'skeleton',
    'num-nodes': site.nodes.length,
    'node-os-distro': 'debian',
    'allowed-not-ready-nodes': 0,
    minStartupPods: 1,
    'system-pods-startup-timeout': '2m',
    'dns-domain': 'cluster.local',
    'report-dir': folder,
    'report-prefix': 'e2e-',
    'dump-logs-on-failure': true,
  }
  return [
    'run',
    ...[`--procs=${procs}`, '--timeout=3h', '--keep-going', '--no-color', '-v'],
    `--focus=${focusOf(suite, only)}`,
    `--skip=${skipOf(suite, mode)}`,
    ...['--json-report=report.json', `--output-dir=${folder}`],
    ...[binaries.path('e2e.test'), '--'],
    ...Object.entries(e2e).map(([flag, value]) => `--${flag}=${value}`),
  ]
}

/** Ginkgo's verbose output has two lines about each test that has ended: its state and time, then its name. */
const ENDED = /^(?:•|S) \[(?:([A-Z]+).*\] \[)?([\d.]+) seconds\]/
/** What ginkgo adds to a name: the kind of its node, and labels. */
const ADDED = / \[It\]| \[[^\]]*, [^\]]*\]$| \[sig-network\]$/g

/** Keeps the output, and tells of each test that ends. */
function follow(output: Readable, log: string, progress: (words: string) => void): void {
  output.pipe(createWriteStream(log, { flags: 'a' }))
  let ended: RegExpExecArray | null = null
  createInterface({ input: output }).on('line', line => {
    if (ended !== null) {
      const [, state = 'passed', seconds] = ended
      progress(
        `${state.toLowerCase().padEnd(8)} ${Math.round(Number(seconds))} s  ${line.trim().replace(ADDED, '')}`,
      )
    }
    ended = ENDED.exec(line)
  })
}
