import { type Clock, restMs } from '../../base/clock.ts'
import { anyContains, type Cidr, formatIp, parseIp } from '../../base/ip.ts'
import { compareTexts } from '../../base/text.ts'
import type { PageSource } from '../../daemon/optional-parts.ts'
import type { Snapshot } from '../../model/snapshot.ts'
import type { ByteView } from '../../netlink/attribute.ts'
import type { Message } from '../../netlink/message.ts'
import { type FlowGroup, FlowGroups } from '../live/flow-groups.ts'
import { EVERY_SERVICE } from '../live/top-sampler.ts'
import { TableNames } from './page-names.ts'

/** Connections of one kind of client to one namespace or Service port. */
export interface Talk {
  /** The namespace of the client's pod, or one of THIS_NODE, OTHER_PODS and OUTSIDE. */
  readonly from: string
  /** `namespace`, or `namespace/name:port` where one namespace is asked for. */
  readonly to: string
  readonly connections: number
}

export const THIS_NODE = '(this node)'
export const OTHER_PODS = '(pods without a Service)'
export const OUTSIDE = '(outside)'

/** A picture of more lines is not readable; the smallest are summed up. */
const TALKS_MAX = 300

/** Reads all entries of the connection table, as ConntrackReader.dumpAll does. */
export type DumpTable = (take: (view: ByteView, message: Message) => void) => Promise<unknown>

/** The part of the time that reading the connection table may take, whose cost grows with its entries. */
const PACE = { share: 0.02, minMs: 5_000 } as const

interface Reading {
  readonly groups: readonly FlowGroup[]
  readonly sourceOf: (client: string) => string
  readonly atMs: number
}

/** Reads for the map of the page who has connections to which Service: once for all viewers, and only when one asks. */
export class PageFlows {
  readonly #source: PageSource
  readonly #dump: DumpTable
  #reading: Promise<Reading> | undefined
  #dueMs = Number.NEGATIVE_INFINITY

  constructor(source: PageSource, dump: DumpTable) {
    this.#source = source
    this.#dump = dump
  }

  /** Frees the memory of the last reading: no viewer asks any more. */
  forget(): void {
    if (this.#dueMs === Number.POSITIVE_INFINITY) return
    this.#reading = undefined
    this.#dueMs = Number.NEGATIVE_INFINITY
  }

  /** Gives the talks between namespaces; with `namespace`, those to the Service ports of that one. */
  async read(query: URLSearchParams): Promise<unknown> {
    const { clock } = this.#source
    if (clock.nowMs() >= this.#dueMs) {
      this.#dueMs = Number.POSITIVE_INFINITY
      this.#reading = this.#read(clock)
    }
    const reading = await this.#reading
    if (reading === undefined) throw new Error('the connection table is not read yet')
    const all = talksOf(reading, query.get('namespace') ?? '')
    const [talks, others] = [all.slice(0, TALKS_MAX), all.slice(TALKS_MAX)]
    return {
      readAgeS: Math.round((clock.nowMs() - reading.atMs) / 1000),
      talks,
      otherTalks: others.length,
      otherConnections: others.reduce((sum, { connections }) => sum + connections, 0),
    }
  }

  async #read(clock: Clock): Promise<Reading> {
    const startMs = clock.nowMs()
    try {
      const { snapshot, table } = this.#source.held() ?? {}
      if (snapshot === undefined || table === undefined)
        throw new Error('the daemon has not read all objects yet')
      const names = new TableNames(this.#source)
      await names.refresh()
      const groups = new FlowGroups({ names, filter: EVERY_SERVICE, by: 'client', withVolume: false })
      await this.#dump((view, message) => groups.take('new', view, message))
      const { detectLocal } = this.#source.config()
      const podCidrs = [
        ...(snapshot.node?.podCidrs ?? []),
        ...(detectLocal.kind === 'ClusterCIDR' ? detectLocal.cidrs : []),
      ]
      return { groups: groups.largest(), sourceOf: sourcesOf(snapshot, podCidrs), atMs: clock.nowMs() }
    } finally {
      const endMs = clock.nowMs()
      this.#dueMs = endMs + restMs(endMs - startMs, PACE)
    }
  }
}

/** Gives what a client's address says of it. */
function sourcesOf(
  { slices, node, localIps }: Pick<Snapshot, 'slices' | 'node' | 'localIps'>,
  podCidrs: readonly Cidr[],
): (client: string) => string {
  const sources = new Map<string, string>()
  for (const slice of slices.values().flat()) {
    const namespace = slice.key.slice(0, slice.key.indexOf('/'))
    for (const { ip } of slice.endpoints) sources.set(formatIp(ip), namespace)
  }
  // Pods of the node's own network have its address.
  for (const ip of [...localIps, ...(node?.ips ?? [])]) sources.set(formatIp(ip), THIS_NODE)
  return client => {
    const known = sources.get(client)
    if (known !== undefined) return known
    const ip = parseIp(client)
    return ip !== undefined && anyContains(podCidrs, ip) ? OTHER_PODS : OUTSIDE
  }
}

/** Sums connections up, the most first. Pure. */
export function talksOf(
  { groups, sourceOf }: Pick<Reading, 'groups' | 'sourceOf'>,
  namespace: string,
): readonly Talk[] {
  const sums = new Map<string, { from: string; to: string; connections: number }>()
  for (const { client = '', service = '', begun } of groups) {
    const its = service.slice(0, service.indexOf('/'))
    if (namespace !== '' && its !== namespace) continue
    const [from, to] = [sourceOf(client), namespace === '' ? its : service]
    const key = `${from} ${to}`
    const sum = sums.get(key) ?? { from, to, connections: 0 }
    sum.connections += begun
    sums.set(key, sum)
  }
  return [...sums.values()].sort(
    (a, b) => b.connections - a.connections || compareTexts(a.from, b.from) || compareTexts(a.to, b.to),
  )
}
