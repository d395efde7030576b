import { performance } from 'node:perf_hooks'
import { finish, type Steps } from '../../src/base/clock.ts'
import type { AnyTable } from '../../src/kernel/nft/state.ts'
import { compileRule } from '../../src/kernel/xt/compile.ts'
import { appliedScope } from '../../src/kernel/xt/scope.ts'
import { isRefusal } from '../../src/model/fields.ts'
import { parseObject } from '../../src/model/parse.ts'
import { type Resolved, resolve } from '../../src/model/resolve.ts'
import { applyEvents, EMPTY_SNAPSHOT, type Snapshot } from '../../src/model/snapshot.ts'
import { diffStates } from '../../src/modes/iptables/diff.ts'
import { renderIptablesState } from '../../src/modes/iptables/render.ts'
import { DEFAULT_IPTABLES_OPTIONS } from '../../src/modes/iptables/settings.ts'
import type { IptablesState } from '../../src/modes/iptables/state.ts'
import { ipvsHeld } from '../../src/modes/ipvs/trace.ts'
import { renderState } from '../../src/modes/nftables/render.ts'
import { DEFAULT_NFTABLES_OPTIONS } from '../../src/modes/nftables/settings.ts'
import { EMPTY_STATE, type NftablesState } from '../../src/modes/nftables/state.ts'
import { type ProofState, RunningProof } from '../../src/proof/changes.ts'
import type { MeaningConfig } from '../../src/proof/meaning.ts'
import { meaningOf } from '../../src/proof/meanings.ts'
import { prove, type Question } from '../../src/proof/prove.ts'
import { IPTABLES, IPVS, resolveOptionsOf } from '../support/pipeline.ts'
import { meaningConfigOf } from '../support/proof.ts'
import { PROVING, tablesOfIptables } from '../support/proof-iptables.ts'
import { OWN_IPVS, PROVING_IPVS } from '../support/proof-ipvs.ts'
import { type ClusterSize, clusterObjects, sliceObject } from './cluster.ts'
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

/** Of changes: one endpoint is added to a Service and removed again. */
const CHANGES_SIZES: readonly ClusterSize[] = [
  { services: 100, endpoints: 10 },
  { services: 10_000, endpoints: 10 },
]
/** The same Services at each size: those whose endpoints are on other nodes, and on this one. */
const CHANGED = { elsewhere: { first: 60, count: 40 }, here: { first: 26, count: 20 } } as const
type Where = keyof typeof CHANGED
const CHANGES = 2_000
const WARM_UP = 4_000
const GOAL_CPU_MS = 1
const GOAL_RATIO = 1.5

interface ChangesResult {
  readonly cpuMs: number
  readonly classes: number
  readonly wholeMs: number
  /** Between two offers to pause. */
  readonly longestMs: number
  readonly keptMiB: number
}

type IptablesChangesResult = Pick<ChangesResult, 'cpuMs' | 'classes' | 'wholeMs'>
const IPTABLES_CHANGES_SIZES: readonly ClusterSize[] = [
  { services: 100, endpoints: 10 },
  { services: 1_000, endpoints: 10 },
]
const IPTABLES_WARM_UP = 100
const IPTABLES_CHANGES = 100

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
else if (child === 'changes-iptables') console.log(JSON.stringify(proveIptablesChanges(asked)))
else if (child === 'here' || child === 'elsewhere')
  console.log(JSON.stringify(proveChanges(asked, CHANGED[child])))
else {
  compareSizes('nftables', 'prove', SIZES)
  compareSizes('iptables', 'prove-iptables', IPTABLES_SIZES)
  compareSizes('IPVS', 'prove-ipvs', IPVS_SIZES)
  compareChanges()
  compareIptablesChanges()
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

interface Held {
  readonly resolved: Resolved
  readonly state: NftablesState
}

/** What the kernel holds once it has what this snapshot asks for. */
function held(snapshot: Snapshot, before?: Held): Held {
  const resolving = { ...OPTIONS, nodePortSelection: NODE_PORT_ADDRESSES }
  const resolved = finish(resolve(resolving, before?.resolved, snapshot))
  const detector = { IPv4: { kind: 'cidr', cidr: POD_CIDR }, IPv6: undefined } as const
  const base = before?.state ?? EMPTY_STATE
  const options = { ...DEFAULT_NFTABLES_OPTIONS, detector }
  return { resolved, state: finish(renderState(resolved.table, { base, without: new Set() }, options)) }
}

function cpuMsSince(usage: NodeJS.CpuUsage): number {
  const { user, system } = process.cpuUsage(usage)
  return (user + system) / 1000
}

function proveOnce(size: ClusterSize): Result {
  const snapshot = snapshotOf(size)
  const { tables } = held(snapshot).state.ruleset
  return measured(() => ({ meanings: meaningOf(snapshot, CONFIG), tables, ownName: 'kube-proxy' }))
}

interface HeldIptables {
  readonly resolved: Resolved
  readonly state: IptablesState
}

function heldIptables(snapshot: Snapshot, before?: HeldIptables): HeldIptables {
  const { nodePortAddresses: nodePortSelection } = IPTABLES_CONFIG
  const resolving = { ...OPTIONS, nodePortSelection, loopbackNodePorts: true }
  const resolved = finish(resolve(resolving, before?.resolved, snapshot))
  const detector = { IPv4: { kind: 'cidr', cidr: POD_CIDR }, IPv6: undefined } as const
  const rendering = { base: before?.state ?? IPTABLES.empty, without: new Set<string>() }
  const options = { ...DEFAULT_IPTABLES_OPTIONS, detector }
  return { resolved, state: finish(renderIptablesState(resolved.table, rendering, options)) }
}

function proveIptables(size: ClusterSize): Result {
  const snapshot = snapshotOf(size)
  const tables = tablesOfIptables(heldIptables(snapshot).state)
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

/** CPU of what the daemon does after a change of one endpoint: the tables with what was committed, and the proof. */
function proveIptablesChanges(size: ClusterSize): IptablesChangesResult {
  let snapshot = snapshotOf(size)
  let now = heldIptables(snapshot)
  let tables: readonly AnyTable[] = tablesOfIptables(now.state)
  const running = new RunningProof({ config: IPTABLES_CONFIG, ownName: '', owns: PROVING.owns })
  const whole = process.cpuUsage()
  finish(running.whole({ snapshot, tables }))
  const wholeMs = cpuMsSince(whole)
  let [classes, cpuMs] = [0, 0]
  for (let number = 0; number < IPTABLES_WARM_UP + IPTABLES_CHANGES; number++) {
    const service = CHANGED.elsewhere.first + ((number >> 1) % CHANGED.elsewhere.count)
    const object = parseObject(sliceObject(service, size.endpoints + ((number + 1) & 1)))
    if (object === undefined || isRefusal(object)) throw new Error('a slice is not parsed')
    snapshot = applyEvents(snapshot, [object])
    const before = now
    now = heldIptables(snapshot, before)
    const usage = process.cpuUsage()
    const { operations } = finish(diffStates(before.state, now.state, { compile: compileRule }))
    tables = finish(appliedScope(tables, operations)) ?? []
    const found = finish(running.changes({ snapshot, tables }))
    if (found.kind === 'whole') throw new Error(`a whole proof is needed: ${found.why}`)
    if (found.proof.wrong > 0) throw new Error(JSON.stringify(found.proof.differences))
    if (number < IPTABLES_WARM_UP) continue
    cpuMs += cpuMsSince(usage)
    classes += found.proof.classes
  }
  return { cpuMs: cpuMs / IPTABLES_CHANGES, classes: classes / IPTABLES_CHANGES, wholeMs }
}

function measured(questionOf: () => Question): Result {
  globalThis.gc?.()
  const before = process.memoryUsage.rss()
  let peak = before
  const start = performance.now()
  const usage = process.cpuUsage()
  const question = questionOf()
  const meaningMs = performance.now() - start
  const steps = prove(question)
  let [step, count, longestMs] = [steps.next(), 0, 0]
  while (step.done !== true) {
    if (++count % 50 === 0) peak = Math.max(peak, process.memoryUsage.rss())
    const began = performance.now()
    step = steps.next()
    longestMs = Math.max(longestMs, performance.now() - began)
  }
  const proofMs = performance.now() - start
  const { classes, wrong } = step.value
  const cpuMs = cpuMsSince(usage)
  peak = Math.max(peak, process.memoryUsage.rss())
  return { meaningMs, proofMs, cpuMs, peakMiB: (peak - before) / 2 ** 20, classes, wrong, longestMs }
}

/** CPU of the same changes with and without proofs: to ask for it after each change would cost more than the proof. */
function proveChanges(size: ClusterSize, among: (typeof CHANGED)[Where]): ChangesResult {
  const snapshot = snapshotOf(size)
  const start = { snapshot, now: held(snapshot) }
  globalThis.gc?.()
  const before = process.memoryUsage().heapUsed
  const running = new RunningProof({ config: CONFIG, ownName: 'kube-proxy' })
  const usage = process.cpuUsage()
  const longestMs = longestStepMs(running.whole({ snapshot, tables: start.now.state.ruleset.tables }))
  const wholeMs = cpuMsSince(usage)
  globalThis.gc?.()
  const keptMiB = (process.memoryUsage().heapUsed - before) / 2 ** 20
  let classes = 0
  const prove = (state: ProofState) => {
    const found = finish(running.changes(state))
    if (found.kind === 'whole') throw new Error(`a whole proof is needed: ${found.why}`)
    if (found.proof.wrong > 0) throw new Error(JSON.stringify(found.proof.differences))
    classes += found.proof.classes
  }
  const series = { size, among, changes: CHANGES }
  const warm = change(start, { ...series, changes: WARM_UP }, prove)
  classes = 0
  const [proving, first] = [process.cpuUsage(), change(warm, series, prove)]
  const provedMs = cpuMsSince(proving)
  const usual = process.cpuUsage()
  change(first, series, () => undefined)
  return {
    cpuMs: (provedMs - cpuMsSince(usual)) / CHANGES,
    classes: classes / CHANGES,
    wholeMs,
    longestMs,
    keptMiB,
  }
}

function longestStepMs(steps: Steps<unknown>): number {
  let longestMs = 0
  for (let isDone = false; !isDone; ) {
    const start = performance.now()
    isDone = steps.next().done === true
    longestMs = Math.max(longestMs, performance.now() - start)
  }
  return longestMs
}

interface Series {
  readonly size: ClusterSize
  readonly among: (typeof CHANGED)[Where]
  readonly changes: number
}

interface At {
  readonly snapshot: Snapshot
  readonly now: Held
}

function change(from: At, { size, among, changes }: Series, prove: (state: ProofState) => void): At {
  let { snapshot, now } = from
  for (let number = 0; number < changes; number++) {
    const service = among.first + ((number >> 1) % among.count)
    const object = parseObject(sliceObject(service, size.endpoints + ((number + 1) & 1)))
    if (object === undefined || isRefusal(object)) throw new Error('a slice is not parsed')
    snapshot = applyEvents(snapshot, [object])
    now = held(snapshot, now)
    prove({ snapshot, tables: now.state.ruleset.tables })
  }
  return { snapshot, now }
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

function compareChanges(): void {
  for (const where of ['elsewhere', 'here'] as const) {
    const results = CHANGES_SIZES.map(size => ({
      ...size,
      ...childResult<ChangesResult>([where, String(size.services), String(size.endpoints)]),
    }))
    const place = where === 'here' ? 'this node' : 'other nodes'
    print(
      `a proof of changes, nftables mode: one endpoint added, then removed; endpoints on ${place}`,
      results.map(({ services, endpoints, cpuMs, classes, wholeMs, longestMs, keptMiB }) => ({
        size: `${services} x ${endpoints}`,
        'classes a change': classes.toFixed(1),
        'CPU ms a change': `${cpuMs.toFixed(2)} ${goal(cpuMs, GOAL_CPU_MS)}`,
        'whole CPU ms, once': wholeMs.toFixed(0),
        'longest step ms': longestMs.toFixed(0),
        'kept MiB': keptMiB.toFixed(0),
      })),
    )
    const [small, large] = results
    if (small === undefined || large === undefined) throw new Error('two sizes are compared')
    const ratio = large.cpuMs / small.cpuMs
    console.log(`ratio of the two sizes, CPU: ${ratio.toFixed(2)} ${goal(ratio, GOAL_RATIO)}`)
  }
}

function compareIptablesChanges(): void {
  print(
    'a proof of changes, iptables mode: one endpoint added, then removed; endpoints on other nodes',
    IPTABLES_CHANGES_SIZES.map(({ services, endpoints }) => {
      const result = childResult<IptablesChangesResult>([
        'changes-iptables',
        String(services),
        String(endpoints),
      ])
      return {
        size: `${services} x ${endpoints}`,
        'classes a change': result.classes.toFixed(1),
        'CPU ms a change': result.cpuMs.toFixed(2),
        'whole CPU ms, once': result.wholeMs.toFixed(0),
      }
    }),
  )
}
