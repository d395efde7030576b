import { formatIp, formatIpPort, type Ip, type IpFilter, isSelected } from '../../base/ip.ts'
import type { PortProtocol } from '../../base/ip-packet.ts'
import { isTranslated } from '../../kernel/conntrack/flow.ts'
import {
  addedVolume,
  decodeRecord,
  type FlowEventKind,
  type FlowRecord,
  isAnswered,
  isPlain,
  plainKey,
  type Volume,
} from '../../kernel/conntrack/record.ts'
import { isOfService } from '../../modes/common/show.ts'
import type { ByteView } from '../../netlink/attribute.ts'
import type { Message } from '../../netlink/message.ts'
import { isTarget, type TargetFilter } from '../peers.ts'
import type { FlowNames } from './flow-reading.ts'

export interface FlowFilter {
  /** `namespace/name`; empty for all Services. */
  readonly service: string
  /** Each selects clients; empty for all. */
  readonly from: readonly IpFilter[]
  /** Selects the destination, or the endpoint that it was translated to; undefined for all. */
  readonly to: TargetFilter | undefined
  readonly endpoint: { readonly ip: Ip; readonly port: number | undefined } | undefined
  readonly protocol: PortProtocol | undefined
  readonly all: boolean
}

export interface NamedFlow extends FlowRecord {
  /** `namespace/name:port`; undefined for a connection to no Service. */
  readonly service: string | undefined
  /** `namespace/name` of the endpoint's Pod, where it is known. */
  readonly pod: string | undefined
}

/** Names a connection; undefined if the filter excludes it. */
export function namedFlow(
  record: FlowRecord,
  { names, filter }: { readonly names: Pick<FlowNames, 'serviceOf' | 'podAt'>; readonly filter: FlowFilter },
): NamedFlow | undefined {
  const { from, to, endpoint, protocol } = filter
  if (protocol !== undefined && record.protocol !== protocol) return undefined
  if (from.length > 0 && !from.some(each => isSelected(each, record.client))) return undefined
  const { destination, destinationPort, answerer, answererPort } = record
  if (
    to !== undefined &&
    !isTarget(to, destination, destinationPort) &&
    !isTarget(to, answerer, answererPort)
  )
    return undefined
  if (endpoint !== undefined && answerer !== endpoint.ip) return undefined
  if (endpoint?.port !== undefined && answererPort !== endpoint.port) return undefined
  const service = names.serviceOf(record, isTranslated(record))
  const isWanted =
    service === undefined ? filter.all && filter.service === '' : isOfService([service], filter.service)
  return isWanted ? { ...record, service, pod: names.podAt(endpointText(record)) } : undefined
}

export const GROUPINGS = ['service', 'endpoint', 'client'] as const
export type Grouping = (typeof GROUPINGS)[number]

export interface FlowGroup {
  readonly protocol: PortProtocol
  readonly service: string | undefined
  /** `10.1.0.1:8080`, if grouped by endpoint. */
  readonly endpoint: string | undefined
  /** `namespace/name` of the endpoint's Pod, if grouped by endpoint and known. */
  readonly pod: string | undefined
  /** An address, if grouped by client. */
  readonly client: string | undefined
  /** Connections that began, or all of a table. */
  begun: number
  ended: number
  /** Those of them that met no reply, where `repliesOf` counts them. */
  unanswered: number
  /** Bytes and packets of the ended connections, or of those in a table; undefined where the kernel does not count. */
  volume: Volume | undefined
}

type EventCounts = Readonly<Pick<FlowGroup, 'begun' | 'ended'>>

export function summedCounts(all: readonly EventCounts[]): EventCounts {
  return all.reduce((sum, { begun, ended }) => ({ begun: sum.begun + begun, ended: sum.ended + ended }), {
    begun: 0,
    ended: 0,
  })
}

interface FlowGroupsOptions {
  readonly names: Pick<FlowNames, 'serviceOf' | 'podAt' | 'version'>
  readonly filter: FlowFilter
  readonly by: Grouping
  readonly withVolume: boolean
  /** Of which entries those without a reply are counted; undefined for none, which costs less. */
  readonly repliesOf?: FlowEventKind
  /** Maximum number of groups, 100,000 by default; connections of further groups are counted together. */
  readonly groupsMax?: number
}

/**
 * Counts connections in groups. A pair of destination and endpoint that was met before costs one lookup, and nothing is
 * decoded.
 */
export class FlowGroups {
  readonly #options: FlowGroupsOptions
  readonly #groupsMax: number
  readonly #groups = new Map<string, FlowGroup>()
  readonly #known = new Map<string, Found>()
  #version: number
  readonly #others = { begun: 0, ended: 0 }

  constructor(options: FlowGroupsOptions) {
    this.#options = options
    this.#groupsMax = options.groupsMax ?? 100_000
    this.#version = options.names.version
  }

  take(kind: FlowEventKind, view: ByteView, message: Message): void {
    const { by, filter, withVolume, names, repliesOf } = this.#options
    if (this.#version !== names.version) this.#forgetPairs()
    const isByPair = by !== 'client' && filter.from.length === 0
    const group =
      isByPair && isPlain(view, message) ? this.#groupOfPair(view, message) : this.#groupOf(view, message)
    if (group === 'excluded') return
    const counts = group === 'other' ? this.#others : group
    if (kind === 'new') counts.begun++
    else counts.ended++
    if (group === 'other') return
    if (kind === repliesOf && !isAnswered(view, message)) group.unanswered++
    const volume = withVolume ? decodeRecord(view, message)?.volume : undefined
    if (volume !== undefined) group.volume = addedVolume(group.volume, volume)
  }

  largest(): readonly FlowGroup[] {
    return [...this.#groups.values()]
      .filter(({ begun, ended }) => begun + ended > 0)
      .sort((a, b) => b.begun - a.begun || b.ended - a.ended)
  }

  /** Connections of groups beyond the maximum number of groups. */
  get others(): EventCounts {
    return { ...this.#others }
  }

  /** Starts to count again from zero, and keeps what it knows of names. */
  restart(): void {
    Object.assign(this.#others, { begun: 0, ended: 0 })
    const idle: string[] = []
    for (const [key, group] of this.#groups) {
      if (group.begun + group.ended === 0) idle.push(key)
      group.begun = 0
      group.ended = 0
      group.unanswered = 0
      group.volume = undefined
    }
    // Groups that met no connection since the last time would stay forever. Up to 5,000 may: they save the next interval
    // their lookups.
    if (idle.length < 5_000) return
    for (const key of idle) this.#groups.delete(key)
    this.#forgetPairs()
  }

  #groupOfPair(view: ByteView, message: Message): Found {
    const key = plainKey(view, message)
    const known = this.#known.get(key)
    if (known !== undefined) return known
    const found = this.#groupOf(view, message)
    // Maximum of remembered pairs of a destination and an endpoint; more are named again.
    if (this.#known.size >= 200_000) this.#forgetPairs()
    this.#known.set(key, found)
    return found
  }

  #forgetPairs(): void {
    this.#known.clear()
    this.#version = this.#options.names.version
  }

  #groupOf(view: ByteView, message: Message): Found {
    const record = decodeRecord(view, message)
    const flow = record === undefined ? undefined : namedFlow(record, this.#options)
    if (flow === undefined) return 'excluded'
    const { protocol, service } = flow
    const { by } = this.#options
    const endpoint = by === 'endpoint' ? endpointText(flow) : undefined
    const pod = endpoint === undefined ? undefined : flow.pod
    const client = by === 'client' ? formatIp(flow.client) : undefined
    const key = [protocol, service, endpoint, client].join(' ')
    const known = this.#groups.get(key)
    if (known !== undefined) return known
    if (this.#groups.size >= this.#groupsMax) return 'other'
    const group = {
      protocol,
      service,
      endpoint,
      pod,
      client,
      begun: 0,
      ended: 0,
      unanswered: 0,
      volume: undefined,
    }
    this.#groups.set(key, group)
    return group
  }
}

/** `other`: of a group beyond the maximum. */
type Found = FlowGroup | 'excluded' | 'other'

/** Formats the endpoint of a connection; undefined where nothing translated it: its endpoint is not known. */
export function endpointText(flow: FlowRecord): string | undefined {
  return isTranslated(flow) ? formatIpPort(flow.answerer, flow.answererPort) : undefined
}
