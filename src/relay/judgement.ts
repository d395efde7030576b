import { compareVersions, isOlder } from '../source/kube/object-index.ts'
import type { Revisions } from '../source/source.ts'
import { type NodeReport, SILENT_MS } from './node-report.ts'

export const PROGRAMMED_KINDS = ['Service', 'EndpointSlice'] as const

export function isProgrammed(kind: string): kind is (typeof PROGRAMMED_KINDS)[number] {
  return PROGRAMMED_KINDS.some(each => each === kind)
}

export interface KnownNode {
  readonly name: string
  /** Its last report; undefined before the first one. */
  readonly report: NodeReport | undefined
  /** The age of the report; without one, the time for which the relay has waited. */
  readonly ageMs: number
  /** The time for which the node has lacked a change that the relay has. */
  readonly behindMs: number
  /** Its revisions are of another history than those of the relay, as before a restore of etcd. */
  readonly isElsewhere: boolean
}

/** The state that nodes should hold. */
export interface Goal {
  readonly revisions: Revisions
  /** The identity of the cluster; empty when it is unknown. */
  readonly cluster: string
  /** The Service, `namespace/name`, that alone counts; undefined for all. */
  readonly service: string | undefined
}

export const NODE_STATES = ['holds', 'behind', 'failing', 'incomplete', 'silent'] as const
export type NodeState = (typeof NODE_STATES)[number]

export interface NodeVerdict {
  readonly node: string
  readonly state: NodeState
  readonly why: string
  /** Minimum time in this state, milliseconds; undefined for a node that holds all, and where it is unknown. */
  readonly sinceMs: number | undefined
  readonly report: NodeReport | undefined
}

/** Judges whether the kernel of a node holds the goal. A missing report never counts as holding it. */
export function judgeNode(node: KnownNode, goal: Goal): NodeVerdict {
  const { name, report, ageMs, behindMs, isElsewhere } = node
  const verdict = (state: NodeState, why: string, sinceMs?: number): NodeVerdict => {
    const note = report?.isDirect === true ? 'reads the API server itself' : ''
    return { node: name, state, why: [why, note].filter(Boolean).join('; '), sinceMs, report }
  }
  if (report === undefined || ageMs > SILENT_MS) {
    const last = report === undefined ? 'no report since the relay started' : 'the last report is too old'
    return verdict('silent', `${last}; the state of its kernel is unknown`, ageMs)
  }
  const { held, failure, cluster } = report
  if (failure !== '') return verdict('failing', failure, behindMs || undefined)
  if (held === undefined) return verdict('behind', 'its first sync is not complete', behindMs || undefined)
  if (cluster !== '' && goal.cluster !== '' && cluster !== goal.cluster)
    return verdict('behind', `holds the state of another cluster, ${cluster}`)
  if (isElsewhere)
    return verdict('behind', 'holds a state that the API server no longer has: its store was restored')
  const lacks = PROGRAMMED_KINDS.find(kind => !reaches(held[kind], goal.revisions[kind]))
  if (lacks !== undefined)
    return verdict(
      'behind',
      `holds ${lacks}s of revision ${held[lacks] || 'none'}, not ${goal.revisions[lacks]}`,
      behindMs || undefined,
    )
  const why = whyIncomplete(report, goal.service)
  return why === undefined ? verdict('holds', '') : verdict('incomplete', why)
}

/** A collection without a change is reached by everybody. */
function reaches(held: string, wanted: string): boolean {
  return wanted === '' || (compareVersions(held, wanted) ?? -1) >= 0
}

function whyIncomplete({ lacking, lackingCount, proof }: NodeReport, service?: string): string | undefined {
  const found = lacking.find(each => service === undefined || each.service === service)
  const rest = lackingCount - lacking.length
  if (found !== undefined)
    return `${found.service}: ${found.reason}${service === undefined && lackingCount > 1 ? `; and ${lackingCount - 1} more` : ''}`
  if (rest > 0) return `${rest} more Services are skipped, which the report does not name`
  return proof !== undefined && proof.differences > 0 ? `proof: ${proof.text}` : undefined
}

/** The newest of what relays have read. */
export function newest(all: readonly Revisions[]): Revisions {
  const of = (kind: keyof Revisions): string =>
    all.reduce((most, its) => (most === '' || isOlder(most, its[kind]) ? its[kind] : most), '')
  return { Service: of('Service'), EndpointSlice: of('EndpointSlice') }
}

/** The reports of several relays: of each node the newest one. */
export function mergeNodes(relays: readonly (readonly KnownNode[])[]): readonly KnownNode[] {
  const byName = new Map<string, KnownNode>()
  for (const node of relays.flat()) {
    const known = byName.get(node.name)
    if (known === undefined || isNewer(node, known)) byName.set(node.name, node)
  }
  return [...byName.values()]
}

function isNewer({ report: a, ageMs }: KnownNode, { report: b, ageMs: before }: KnownNode): boolean {
  if (a === undefined || b === undefined) return a !== undefined || (b === undefined && ageMs < before)
  if (a.startedMs === b.startedMs) return a.number > b.number
  return ageMs < before
}
