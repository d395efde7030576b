import { ApiFeed, type FeedSource } from '../../../src/api/feed.ts'
import { type ApiObject, type ApiState, SET_ENDPOINTS, SET_SERVICES } from '../../../src/api/state.ts'
import { systemClock } from '../../../src/base/clock.ts'
import { PersistentMap } from '../../../src/base/collections.ts'
import { decodeOpItem, encodeLocalv1, framed } from './localv1.ts'

/** Its frame is written by another implementation of protobuf than ours. */
export function objectOf(set: 1 | 2, path: string, json: object): ApiObject {
  const Bytes = encodeLocalv1(set === SET_SERVICES ? 'Service' : 'Endpoint', json)
  const memory = framed(encodeLocalv1('OpItem', { Set: { Ref: { Set: set, Path: path }, Bytes } }))
  return { path, json, memory, start: 0, end: memory.length }
}

/** The message Service or Endpoint in its frame. */
export function messageIn({ memory, start, end }: ApiObject): Buffer {
  const { Set: its } = decodeOpItem(memory.subarray(start + 5, end))
  return Buffer.from(its?.Bytes ?? [])
}

export function serviceObject(path: string, port: number): ApiObject {
  const [Namespace, Name] = path.split('/')
  const json = {
    Namespace,
    Name,
    Type: 'ClusterIP',
    IPs: { ClusterIPs: { V4: [`10.96.${(port >> 8) & 255}.${port & 255}`] }, ExternalIPs: {} },
    Ports: [{ Name: 'http', Protocol: 1, Port: port, TargetPort: 8080 }],
    Labels: { app: Name },
  }
  return objectOf(SET_SERVICES, path, json)
}

export function endpointObject(path: string, number: number): ApiObject {
  const json = {
    IPs: { V4: [`10.${(number >> 16) & 255}.${(number >> 8) & 255}.${number & 255}`] },
    Local: number % 2 === 0,
    Scopes: { Internal: true, External: true },
  }
  return objectOf(SET_ENDPOINTS, path, json)
}

/** `count` Services with `endpointsEach` endpoints each; made once, since tests ask for the same ones. */
export function largeState(count: number, endpointsEach: number): ApiState {
  const key = `${count} ${endpointsEach}`
  const made = MADE.get(key) ?? makeLargeState(count, endpointsEach)
  MADE.set(key, made)
  return made
}

const MADE = new Map<string, ApiState>()

function makeLargeState(count: number, endpointsEach: number): ApiState {
  const services: [string, ApiObject][] = []
  const endpoints: [string, ApiObject][] = []
  for (let service = 0; service < count; service++) {
    const path = `namespace-${service % 50}/service-${service}`
    services.push([path, serviceObject(path, 1 + (service % 60_000))])
    for (let number = 0; number < endpointsEach; number++) {
      const of = `${path}/${(service * endpointsEach + number).toString(16).padStart(16, '0')}`
      endpoints.push([of, endpointObject(of, service * endpointsEach + number)])
    }
  }
  return { number: 1, services: PersistentMap.from(services), endpoints: PersistentMap.from(endpoints) }
}

export const EMPTY: ApiState = {
  number: 1,
  services: PersistentMap.empty(),
  endpoints: PersistentMap.empty(),
}

/** The next version: objects that are set, and (undefined) deleted. */
export function nextState(
  before: ApiState,
  changes: {
    readonly services?: Iterable<readonly [string, ApiObject | undefined]>
    readonly endpoints?: Iterable<readonly [string, ApiObject | undefined]>
  },
): ApiState {
  return {
    number: before.number + 1,
    services: before.services.with(changes.services ?? []),
    endpoints: before.endpoints.with(changes.endpoints ?? []),
  }
}

const HEALTHY: FeedSource = { missing: [], heardMs: 0, trouble: undefined }

export function feedOf(state?: ApiState, source: FeedSource | undefined = HEALTHY): ApiFeed {
  const feed = new ApiFeed({ clock: systemClock, source: () => source })
  if (state !== undefined) feed.offer(state)
  return feed
}
