import { performance } from 'node:perf_hooks'
import { finish } from '../../src/base/clock.ts'
import { isRefusal } from '../../src/model/fields.ts'
import { parseObject } from '../../src/model/parse.ts'
import { resolve } from '../../src/model/resolve.ts'
import { applyEvents, EMPTY_SNAPSHOT, type Snapshot } from '../../src/model/snapshot.ts'
import { DEFAULT_NFTABLES_OPTIONS } from '../../src/modes/nftables/options.ts'
import { renderState } from '../../src/modes/nftables/render.ts'
import { EMPTY_STATE } from '../../src/modes/nftables/state.ts'
import { type MeaningConfig, meaningOf } from '../../src/proof/meaning.ts'
import { prove } from '../../src/proof/prove.ts'
import { type ClusterSize, clusterObjects } from './cluster.ts'
import { childResult, goal, print } from './report.ts'

/** A whole proof of a large cluster in nftables mode: the rules are those of a start, and nothing is sent. */
const SIZES: readonly (ClusterSize & { readonly goalMs: number; readonly goalMiB: number })[] = [
  { services: 1_000, endpoints: 10, goalMs: 500, goalMiB: 150 },
  { services: 10_000, endpoints: 10, goalMs: 2_000, goalMiB: 150 },
  { services: 50_000, endpoints: 2, goalMs: 8_000, goalMiB: 600 },
]

interface Result {
  readonly meaningMs: number
  readonly proofMs: number
  readonly cpuMs: number
  readonly peakMiB: number
  readonly classes: number
  readonly wrong: number
}

const NODE = 'node-1'
const POD_CIDR = { ip: '\x0a\x80\0\0', bits: 9 }

const [, , child, services, endpoints] = process.argv
if (child === 'prove')
  console.log(JSON.stringify(proveOnce({ services: Number(services), endpoints: Number(endpoints) })))
else compare()

function snapshotOf(size: ClusterSize): Snapshot {
  return applyEvents(
    EMPTY_SNAPSHOT,
    [...clusterObjects(size)].flatMap(object => {
      const parsed = parseObject(object)
      return parsed === undefined || isRefusal(parsed) ? [] : [parsed]
    }),
  )
}

function proveOnce(size: ClusterSize): Result {
  const snapshot = snapshotOf(size)
  const options = {
    nodeName: NODE,
    serviceProxyName: undefined,
    allowedExternalCidrs: [],
    allowedLoadBalancerCidrs: [],
  }
  const nodePortAddresses = { primary: true, cidrs: [] }
  const { table } = finish(
    resolve(
      {
        ...options,
        nodePortSelection: nodePortAddresses,
        allowServiceExternalIps: true,
        bindAddress: undefined,
      },
      undefined,
      snapshot,
    ),
  )
  const detector = { IPv4: { kind: 'cidr', cidr: POD_CIDR }, IPv6: undefined } as const
  const { ruleset } = finish(
    renderState(table, { base: EMPTY_STATE, without: new Set() }, { ...DEFAULT_NFTABLES_OPTIONS, detector }),
  )
  globalThis.gc?.()
  const before = process.memoryUsage.rss()
  let peak = before
  const start = performance.now()
  const usage = process.cpuUsage()
  const config: MeaningConfig = {
    ...options,
    nodePortAddresses,
    allowServiceExternalIps: true,
    bindAddress: undefined,
    featureGates: {},
    masqueradeAll: false,
    detectLocal: { kind: 'ClusterCIDR', cidrs: [POD_CIDR] },
  }
  const meanings = meaningOf(snapshot, config)
  const meaningMs = performance.now() - start
  const steps = prove({ meanings, tables: ruleset.tables, ownName: 'kube-proxy' })
  let step = steps.next()
  for (let count = 0; step.done !== true; step = steps.next())
    if (++count % 50 === 0) peak = Math.max(peak, process.memoryUsage.rss())
  const proofMs = performance.now() - start
  const { classes, wrong } = step.value
  const { user, system } = process.cpuUsage(usage)
  const cpuMs = (user + system) / 1000
  peak = Math.max(peak, process.memoryUsage.rss())
  return { meaningMs, proofMs, cpuMs, peakMiB: (peak - before) / 2 ** 20, classes, wrong }
}

function compare(): void {
  print(
    'kprobe verify --prove, nftables mode',
    SIZES.map(({ services, endpoints, goalMs, goalMiB }) => {
      const result = childResult<Result>(['prove', String(services), String(endpoints)])
      return {
        size: `${services} x ${endpoints}`,
        classes: String(result.classes),
        wrong: String(result.wrong),
        'meaning ms': result.meaningMs.toFixed(0),
        'whole ms': `${result.proofMs.toFixed(0)} ${goal(result.proofMs, goalMs)}`,
        'CPU ms': result.cpuMs.toFixed(0),
        'beside the objects MiB': `${result.peakMiB.toFixed(0)} ${goal(result.peakMiB, goalMiB)}`,
      }
    }),
  )
}
