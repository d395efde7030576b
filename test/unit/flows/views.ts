import { finish } from '../../../src/base/clock.ts'
import type { FlowSocket } from '../../../src/flows/ports.ts'
import { socketKey } from '../../../src/kernel/conntrack/flow.ts'
import type { ResolveOptions } from '../../../src/model/node-context.ts'
import { type Resolved, resolve } from '../../../src/model/resolve.ts'
import { applyEvents, EMPTY_SNAPSHOT, type SnapshotEvent } from '../../../src/model/snapshot.ts'
import { ip } from '../../support/addresses.ts'
import { socket } from '../kernel/conntrack/flows.ts'
import { eventsOf, type Fields, OPTIONS, service, slice } from '../model/objects.ts'

export interface ViewWords {
  readonly localIps?: readonly string[]
  /** Of the Services that are no longer there. */
  readonly remove?: readonly string[]
  readonly options?: Partial<ResolveOptions>
  /** After those of the objects. */
  readonly events?: readonly SnapshotEvent[]
}

/** The view after these objects, on top of an earlier one. */
export function view(objects: readonly unknown[], before?: Resolved, words: ViewWords = {}): Resolved {
  const events: SnapshotEvent[] = [...eventsOf(objects)]
  for (const key of words.remove ?? []) events.push({ kind: 'Service', key, value: undefined })
  if (words.localIps !== undefined) events.push({ kind: 'LocalIps', value: words.localIps.map(ip) })
  events.push(...(words.events ?? []))
  const snapshot = applyEvents(before?.snapshot ?? EMPTY_SNAPSHOT, events)
  const options = { ...OPTIONS, allowServiceExternalIps: true, ...words.options }
  return finish(resolve(options, before, snapshot))
}

export const DNS_PORT = { name: 'dns', port: 53, protocol: 'UDP' }

/** ns/dns at 10.96.0.10:53/UDP. */
export function dns(spec: Fields = {}, annotations: Fields = {}): Fields {
  return service(
    'dns',
    { clusterIP: '10.96.0.10', ports: [DNS_PORT], ...spec },
    { metadata: { annotations }, status: {} },
  )
}

export const READY = { ready: true }

export interface EndpointWords {
  readonly [address: string]: Fields
}

/** Endpoints of ns/dns with their conditions, at 1053/UDP. */
export function dnsSlice(endpoints: EndpointWords, rest: Fields = {}): Fields {
  const list = Object.entries(endpoints).map(([address, conditions]) => ({
    addresses: [address],
    conditions,
  }))
  return slice('dns-a', 'dns', list, { ports: [{ name: 'dns', port: 1053, protocol: 'UDP' }], ...rest })
}

export function key(text: string): string {
  const { ip: address, port }: FlowSocket = socket(text)
  return socketKey(address, port)
}
