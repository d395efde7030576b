import { compareIps, familyOf, formatIp, type Ip } from '../base/ip.ts'
import { isSame } from '../base/plain-data.ts'
import type { Backend, ServiceFrontends } from '../model/frontend.ts'
import type { Service, SliceList } from '../model/service.ts'
import type { MessageOf } from '../wire/protobuf/table.ts'
import type { localv1 } from './schema.ts'
import { type ServiceView, targetOf, usesOf } from './service-view.ts'

type EndpointMessage = MessageOf<typeof localv1.Endpoint>
type PortName = MessageOf<typeof localv1.PortName>

/**
 * Makes the messages of the endpoints that this node may send the Service's connections to, by key, one after the other;
 * with `only`, those of these addresses.
 */
export function* endpointMessages(
  view: ServiceView,
  only?: ReadonlySet<Ip>,
): Iterable<readonly [key: string, EndpointMessage]> {
  const terms = termsOf(view.service)
  const drafts = draftsOf(view.frontends, only)
  const hostnames = hostnamesOf(view.slices, drafts)
  for (const [ip, draft] of drafts) {
    const address = [formatIp(ip)]
    const { local, internal, external } = draft
    for (const overrides of variantsOf(draft, terms)) {
      const message = {
        Hostname: hostnames.get(ip),
        IPs: familyOf(ip) === 'IPv4' ? { V4: address } : { V6: address },
        Local: local || undefined,
        PortOverrides: overrides.length === 0 ? undefined : overrides,
        Scopes: terms.scoped
          ? { Internal: internal || undefined, External: external || undefined }
          : undefined,
      }
      yield [keyOf(ip, overrides), message]
    }
  }
}

export function endpointKeys(view: ServiceView, only?: ReadonlySet<Ip>): Set<string> {
  const terms = termsOf(view.service)
  const keys = new Set<string>()
  for (const [ip, draft] of draftsOf(view.frontends, only))
    for (const overrides of variantsOf(draft, terms)) keys.add(keyOf(ip, overrides))
  return keys
}

function keyOf(ip: Ip, overrides: readonly PortName[]): string {
  return `${formatIp(ip)}${overrides.map(({ Name = '', Port }) => `,${Name}=${Port}`).join('')}`
}

/** The fields of the Service object that concern all of its endpoints. */
interface EndpointTerms {
  /** Target ports by the name of the service port. */
  readonly targets: ReadonlyMap<string, number | string>
  /** A policy keeps some traffic on the node. */
  readonly scoped: boolean
}

function termsOf(service: Service): EndpointTerms {
  const { ports, internalTrafficPolicy, externalTrafficPolicy } = service
  return {
    targets: new Map(ports.map(port => [port.name, targetOf(service, port)])),
    scoped: internalTrafficPolicy === 'Local' || externalTrafficPolicy === 'Local',
  }
}

/**
 * The ports that are not the ones the Service names, once for each endpoint that has the address: pods in the network of
 * their node share it, and differ in nothing but their ports.
 */
function variantsOf({ ports }: EndpointDraft, { targets }: EndpointTerms): readonly (readonly PortName[])[] {
  const lists = [...ports].map(([name, numbers]) => ({ name, numbers: [...numbers] }))
  const count = Math.max(1, ...lists.map(({ numbers }) => numbers.length))
  const variants: PortName[][] = []
  for (let index = 0; index < count; index++) {
    const overrides: PortName[] = []
    for (const { name, numbers } of lists) {
      const port = numbers[index] ?? numbers[0] ?? 0
      if (port !== targets.get(name)) overrides.push({ Name: name || undefined, Port: port })
    }
    variants.push(overrides)
  }
  return variants
}

/** An address behind a Service, with all entries of its lists. */
interface EndpointDraft {
  readonly local: boolean
  internal: boolean
  external: boolean
  /** Port numbers by the name of the service port, mostly one. */
  readonly ports: Map<string, Set<number>>
}

/** All addresses behind a Service; where `only` is given those, which costs their number and not the Service's. */
export function draftsOf(
  frontends: ServiceFrontends,
  only: ReadonlySet<Ip> | undefined,
): ReadonlyMap<Ip, EndpointDraft> {
  const drafts = new Map<Ip, EndpointDraft>()
  for (const { name, ...lists } of usesOf(frontends))
    for (const scope of ['internal', 'external'] as const)
      for (const { ip, port, local } of among(lists[scope], only)) {
        const draft = drafts.get(ip) ?? { local, internal: false, external: false, ports: new Map() }
        drafts.set(ip, draft)
        draft[scope] = true
        if (name !== undefined) draft.ports.set(name, (draft.ports.get(name) ?? new Set()).add(port))
      }
  return drafts
}

/** The back ends of a list, sorted by address, that have one of the addresses. */
function among(list: readonly Backend[], only: ReadonlySet<Ip> | undefined): readonly Backend[] {
  if (only === undefined) return list
  const found: Backend[] = []
  for (const ip of only) {
    let index = positionOf(list, ip)
    for (let backend = list[index]; backend?.ip === ip; backend = list[++index]) found.push(backend)
  }
  return found
}

/** The index of the first item at this address or behind it, in a list that is sorted by address. */
function positionOf(list: readonly Backend[], ip: Ip): number {
  let from = 0
  let to = list.length
  while (from < to) {
    const middle = (from + to) >>> 1
    if ((list[middle]?.ip ?? '') < ip) from = middle + 1
    else to = middle
  }
  return from
}

/**
 * Finds the hostname of each address: the first slice with a name for it counts. Walks the names of each slice, or the
 * addresses if they are fewer.
 */
export function hostnamesOf(slices: SliceList, addresses: ReadonlyMap<Ip, unknown>): ReadonlyMap<Ip, string> {
  const found = new Map<Ip, string>()
  for (const { hostnames, endpoints } of slices) {
    if (hostnames === undefined) continue
    for (const ip of addresses.size < endpoints.length ? addresses.keys() : Object.keys(hostnames)) {
      const hostname = hostnames[ip]
      if (hostname !== undefined && !found.has(ip)) found.set(ip, hostname)
    }
  }
  return found
}

/**
 * Finds the addresses whose endpoint messages may differ between two views of a Service, because a back end or a
 * hostname differs. Undefined where the views differ in something that concerns all. Compares each back end, and makes
 * no message.
 */
export function changedAddresses(from: ServiceView, to: ServiceView): ReadonlySet<Ip> | undefined {
  if (from.service !== to.service && !isSameTerms(from, to)) return undefined
  const [before, after] = [usesOf(from.frontends), usesOf(to.frontends)]
  if (before.length !== after.length) return undefined
  const changed = new Set<Ip>()
  for (const [index, now] of after.entries()) {
    const old = before[index]
    if (old?.key !== now.key) return undefined
    addOtherBackends(changed, old.internal, now.internal)
    // One list is mostly behind all addresses of a port.
    if (old.external !== old.internal || now.external !== now.internal)
      addOtherBackends(changed, old.external, now.external)
  }
  addRenamed(changed, from.slices, to.slices)
  return changed
}

function isSameTerms(from: ServiceView, to: ServiceView): boolean {
  const [before, after] = [termsOf(from.service), termsOf(to.service)]
  return before.scoped === after.scoped && isSame([...before.targets], [...after.targets])
}

function addOtherBackends(changed: Set<Ip>, from: readonly Backend[], to: readonly Backend[]): void {
  inPairs(from, to, {
    order: (a, b) => (a.ip === b.ip ? a.port - b.port : compareIps(a.ip, b.ip)),
    visit(a, b) {
      const ip = a?.ip ?? b?.ip
      if (ip !== undefined && (a?.ip !== b?.ip || a?.local !== b?.local)) changed.add(ip)
    },
  })
}

function addRenamed(changed: Set<Ip>, from: SliceList, to: SliceList): void {
  inPairs(from, to, {
    order: (a, b) => (a.key === b.key ? 0 : a.key < b.key ? -1 : 1),
    visit(a, b) {
      const [old, now] = [a?.hostnames, b?.hostnames]
      if (old === now) return
      for (const names of [old, now]) for (const ip in names) if (old?.[ip] !== now?.[ip]) changed.add(ip)
    },
  })
}

interface Pairing<T> {
  readonly order: (a: T, b: T) => number
  /** Gets two items of the same key, or one without a counterpart. */
  readonly visit: (from: T | undefined, to: T | undefined) => void
}

/** Walks two sorted lists, neither of which has a key twice. */
function inPairs<T>(from: readonly T[], to: readonly T[], { order, visit }: Pairing<T>): void {
  if (from === to) return
  let [left, right] = [0, 0]
  while (left < from.length || right < to.length) {
    const [a, b] = [from[left], to[right]]
    const first = a === undefined ? 1 : b === undefined ? -1 : order(a, b)
    visit(first <= 0 ? a : undefined, first >= 0 ? b : undefined)
    if (first <= 0) left++
    if (first >= 0) right++
  }
}
