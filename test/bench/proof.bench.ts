import { performance } from 'node:perf_hooks'
import { finish } from '../../src/base/clock.ts'
import { isRefusal } from '../../src/model/fields.ts'
import { parseObject } from '../../src/model/parse.ts'
import { resolve } from '../../src/model/resolve.ts'
import { applyEvents, EMPTY_SNAPSHOT, type Snapshot } from '../../src/model/snapshot.ts'
import { renderIptablesState } from '../../src/modes/iptables/render.ts'
import { DEFAULT_IPTABLES_OPTIONS } from '../../src/modes/iptables/settings.ts'
import { ipvsHeld } from '../../src/modes/ipvs/trace.ts'
import { renderState } from '../../src/modes/nftables/render.ts'
import { DEFAULT_NFTABLES_OPTIONS } from '../../src/modes/nftables/settings.ts'
import { EMPTY_STATE } from '../../src/modes/nftables/state.ts'
import type { MeaningConfig } from '../../src/proof/meaning.ts'
import { meaningOf } from '../../src/proof/meanings.ts'
import { ProofRun, type Question } from '../../src/proof/prove.ts'
import { IPTABLES, IPVS, resolveOptionsOf } from '../support/pipeline.ts'
import { meaningConfigOf } from '../support/proof.ts'
import { PROVING, tablesOfIptables } from '../support/proof-iptables.ts'
import { OWN_IPVS, PROVING_IPVS } from '../support/proof-ipvs.ts'
import { type ClusterSize, clusterObjects } from './cluster.ts'
import { childResult, goal, print } from './report.ts'

/** A whole proof of a large cluster in nftables mode: the rules are those of a start, and nothing is sent. */
const SIZES: readonly (ClusterSize & { readonly goalMs: number; readonly goalMiB: number })[] = [
  { services: 1_000, endpoints: 10, goalMs: 500, goalMiB: 150 },
  { services: 10_000, endpoints: 10, goalMs: 2_000, goalMiB: 150 },
  { services: 50_000, endpoints: 2, goalMs: 8_000, goalMiB: 600 },
]

const IPVS_SIZES: typeof SIZES = [
  { services: 1_000, endpoints: 10, goalMs: 5_000, goalMiB: 300 },
  { services: 10_000, endpoints: 10, goalMs: 20_000, goalMiB: 600 },
]
const IPTABLES_SIZES: typeof SIZES = [{ services: 1_000, endpoints: 10, goalMs: 5_000, goalMiB: 300 }]

interface Result {
  readonly meaningMs: number
  readonly proofMs: number
  readonly cpuMs: number
  readonly peakMiB: number
  readonly classes: number
  readonly wrong: number
  /** Between two offers to pause. */
  readonly longestMs: number
}

const NODE = 'node-1'
const POD_CIDR = { ip: '\x0a\x80\0\0', bits: 9 }
const DETECTOR = { IPv4: { kind: 'cidr', cidr: POD_CIDR }, IPv6: undefined } as const

const OPTIONS = {
  nodeName: NODE,
  serviceProxyName: undefined,
  allowedExternalCidrs: [],
  allowedLoadBalancerCidrs: [],
  allowServiceExternalIps: true,
  bindAddress: undefined,
}
const NODE_PORT_ADDRESSES = { primary: true, cidrs: [] }
const CONFIG: MeaningConfig = {
  ...OPTIONS,
  nodePortAddresses: NODE_PORT_ADDRESSES,
  featureGates: {},
  masqueradeAll: false,
  detectLocal: { kind: 'ClusterCIDR', cidrs: [POD_CIDR] },
}

const IPTABLES_CONFIG: MeaningConfig = {
  ...CONFIG,
  nodePortAddresses: { primary: false, cidrs: [] },
  promises: PROVING.promises,
}

const [, , child, services, endpoints] = process.argv
const asked = { services: Number(services), endpoints: Number(endpoints) }
if (child === 'prove') console.log(JSON.stringify(proveOnce(asked)))
else if (child === 'prove-iptables') console.log(JSON.stringify(proveIptables(asked)))
else if (child === 'prove-ipvs') console.log(JSON.stringify(proveIpvs(asked)))
else {
  compareSizes('nftables', 'prove', SIZES)
  compareSizes('iptables', 'prove-iptables', IPTABLES_SIZES)
  compareSizes('IPVS', 'prove-ipvs', IPVS_SIZES)
}

function snapshotOf(size: ClusterSize): Snapshot {
  return applyEvents(
    EMPTY_SNAPSHOT,
    [...clusterObjects(size)].flatMap(object => {
      const parsed = parseObject(object)
      return parsed === undefined || isRefusal(parsed) ? [] : [parsed]
    }),
  )
}

function cpuMsSince(usage: NodeJS.CpuUsage): number {
  const { user, system } = process.cpuUsage(usage)
  return (user + system) / 1000
}

function proveOnce(size: ClusterSize): Result {
  const snapshot = snapshotOf(size)
  const resolved = finish(
    resolve({ ...OPTIONS, nodePortSelection: NODE_PORT_ADDRESSES }, undefined, snapshot),
  )
  const options = { ...DEFAULT_NFTABLES_OPTIONS, detector: DETECTOR }
  const rendering = { base: EMPTY_STATE, without: new Set<string>() }
  const { tables } = finish(renderState(resolved.table, rendering, options)).ruleset
  return measured(() => ({ meanings: meaningOf(snapshot, CONFIG), tables, ownName: 'kube-proxy' }))
}

function proveIptables(size: ClusterSize): Result {
  const snapshot = snapshotOf(size)
  const { nodePortAddresses: nodePortSelection } = IPTABLES_CONFIG
  const resolving = { ...OPTIONS, nodePortSelection, loopbackNodePorts: true }
  const resolved = finish(resolve(resolving, undefined, snapshot))
  const rendering = { base: IPTABLES.empty, without: new Set<string>() }
  const options = { ...DEFAULT_IPTABLES_OPTIONS, detector: DETECTOR }
  const tables = tablesOfIptables(finish(renderIptablesState(resolved.table, rendering, options)))
  const { owns } = PROVING
  return measured(() => ({ meanings: meaningOf(snapshot, IPTABLES_CONFIG), tables, ownName: '', owns }))
}

function proveIpvs(size: ClusterSize): Result {
  const snapshot = snapshotOf(size)
  const config = { nodePortAddresses: [] }
  const resolved = finish(resolve({ ...resolveOptionsOf(config), ...IPVS.resolving }, undefined, snapshot))
  const state = finish(IPVS.render(resolved.table, IPVS.empty, config))
  const meaning = { ...meaningConfigOf(config), promises: PROVING_IPVS.promises }
  return measured(() => ({
    meanings: meaningOf(snapshot, meaning),
    tables: state.ruleset.tables,
    ownName: OWN_IPVS,
    ipvs: ipvsHeld(state),
  }))
}

function measured(questionOf: () => Question): Result {
  globalThis.gc?.()
  const before = process.memoryUsage.rss()
  let peak = before
  const start = performance.now()
  const usage = process.cpuUsage()
  const question = questionOf()
  const meaningMs = performance.now() - start
  const run = new ProofRun(question)
  const steps = run.classes()
  let [count, longestMs] = [0, 0]
  for (let began = performance.now(); steps.next().done !== true; began = performance.now()) {
    if (++count % 1_000 === 0) peak = Math.max(peak, process.memoryUsage.rss())
    longestMs = Math.max(longestMs, performance.now() - began)
  }
  const proofMs = performance.now() - start
  const { classes, wrong } = run.proof
  const cpuMs = cpuMsSince(usage)
  peak = Math.max(peak, process.memoryUsage.rss())
  return { meaningMs, proofMs, cpuMs, peakMiB: (peak - before) / 2 ** 20, classes, wrong, longestMs }
}

function compareSizes(mode: string, name: string, sizes: typeof SIZES): void {
  print(
    `kprobe verify --prove, ${mode} mode`,
    sizes.map(({ services, endpoints, goalMs, goalMiB }) => {
      const result = childResult<Result>([name, String(services), String(endpoints)])
      return {
        size: `${services} x ${endpoints}`,
        classes: String(result.classes),
        wrong: String(result.wrong),
        'meaning ms': result.meaningMs.toFixed(0),
        'whole ms': `${result.proofMs.toFixed(0)} ${goal(result.proofMs, goalMs)}`,
        'CPU ms': result.cpuMs.toFixed(0),
        'longest step ms': result.longestMs.toFixed(0),
        'beside the objects MiB': `${result.peakMiB.toFixed(0)} ${goal(result.peakMiB, goalMiB)}`,
      }
    }),
  )
}
