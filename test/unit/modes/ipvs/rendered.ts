import { finish } from '../../../../src/base/clock.ts'
import { formatIp, formatIpPort } from '../../../../src/base/ip.ts'
import { hex } from '../../../../src/base/octets.ts'
import type { IpsetEntry } from '../../../../src/kernel/ipset/state.ts'
import type { FrontendTable } from '../../../../src/model/frontend.ts'
import type { SurroundingsOptions } from '../../../../src/modes/ipvs/places.ts'
import { renderIpvsState } from '../../../../src/modes/ipvs/render.ts'
import { DEFAULT_IPVS_OPTIONS } from '../../../../src/modes/ipvs/settings.ts'
import { EMPTY_STATE, type IpvsState } from '../../../../src/modes/ipvs/state.ts'
import { elementsOf } from '../nftables/inspect.ts'

export function render(
  frontends: FrontendTable,
  base: IpvsState = EMPTY_STATE,
  more: { without?: ReadonlySet<string>; options?: Partial<SurroundingsOptions> } = {},
): IpvsState {
  const options = { ...DEFAULT_IPVS_OPTIONS, missingSchedulers: new Set<string>(), ...more.options }
  return finish(renderIpvsState(frontends, { base, without: more.without ?? new Set() }, options))
}

/** `TCP 10.96.0.1:80 rr -> 10.21.0.1:8080 10.21.0.2:8080`, sorted. */
export function servers(state: IpvsState): string[] {
  return state.servers
    .entries()
    .map(([key, { server, destinations }]) => {
      const persistent = server.timeoutS > 0 ? ` persistent ${server.timeoutS}` : ''
      return `${key} ${server.scheduler}${persistent} -> ${[...destinations.keys()].sort().join(' ')}`.trim()
    })
    .sort()
}

/** What one set has, sorted: `10.96.0.1,6:80`. */
export function members(state: IpvsState, set: string): string[] {
  return state.entries
    .values()
    .filter(entry => entry.set === set)
    .map(({ entry }) => entryText(entry))
    .sort()
}

function entryText({ ip, protocol, port, ip2, prefix2 }: IpsetEntry): string {
  const first = ip === undefined ? [] : [formatIp(ip)]
  const second = port === undefined ? [] : [protocol === undefined ? `${port}` : `${protocol}:${port}`]
  const third =
    ip2 === undefined ? [] : [prefix2 === undefined ? formatIp(ip2) : `${formatIp(ip2)}/${prefix2}`]
  return [...first, ...second, ...third].join(',')
}

export function addresses(state: IpvsState): string[] {
  return state.addresses.values().map(({ ip }) => formatIp(ip))
}

/** Everything there is of a state as text, whatever order it was made in. */
export function everything(state: IpvsState): unknown {
  return {
    servers: servers(state),
    flags: state.servers
      .values()
      .map(({ server, service }) => [server, service].map(text).join(' '))
      .sort(),
    sets: [...state.sets.values()].map(text).sort(),
    entries: state.entries
      .entries()
      .map(([key, placed]) => `${hex(key)} ${text(placed)}`)
      .sort(),
    addresses: state.addresses
      .entries()
      .map(([key, placed]) => `${hex(key)} ${text(placed)}`)
      .sort(),
    elements: state.ruleset.tables.map(table => elementsOf(table).map(text).sort()),
    tables: state.ruleset.tables.map(({ family, name, chains, sets }) =>
      text([family, name, [...chains.values()], [...sets.values()]]),
    ),
    refusals: [...state.refusals].map(text).sort(),
    entryCounts: counts(state.rendering?.entries),
    elementCounts: [counts(state.rendering?.elements.ip), counts(state.rendering?.elements.ip6)],
  }
}

function counts(map: ReadonlyMap<string, number> | undefined): string[] {
  return [...(map ?? [])]
    .filter(([, count]) => count !== 0)
    .map(text)
    .sort()
}

function text(value: unknown): string {
  return JSON.stringify(value)
}

/** What no state may violate, whatever it was rendered from. */
export function complaints(state: IpvsState): string[] {
  const found: string[] = []
  for (const { set, entry, services } of state.entries.values()) {
    if (!state.sets.has(set)) found.push(`there is no set ${set}`)
    if (services.length === 0) found.push(`${set} ${entryText(entry)} serves nobody`)
    if (services.join() !== [...new Set(services)].sort().join())
      found.push(`${set}: users ${services.join()}`)
  }
  for (const [name, { maxElements }] of state.sets)
    if (members(state, name).length > maxElements * 0.75) found.push(`${name} is too full`)
  const recorded = [...members(state, 'KUBE-IPVS-IPS'), ...members(state, 'KUBE-6-IPVS-IPS')]
  if (recorded.sort().join() !== addresses(state).sort().join()) found.push('addresses without a record')
  for (const table of state.ruleset.tables) {
    const keys = new Set<string>()
    for (const { set, key, data } of elementsOf(table)) {
      if (keys.has(`${set} ${key}`)) found.push(`${set} has ${hex(key)} twice`)
      keys.add(`${set} ${key}`)
      if (table.sets.get(set)?.keyLength !== key.length) found.push(`${set} has a key of ${key.length} bytes`)
      if (typeof data === 'object' && data.chain !== undefined && !table.chains.has(data.chain))
        found.push(`${set} leads to ${data.chain}, which is missing`)
      if (typeof data === 'string') {
        if (table.sets.get(set)?.dataLength !== data.length)
          found.push(`${set} has data of ${data.length} bytes`)
        if (serverAt(state, key, data) === undefined) found.push(`${set} leads to no server`)
      }
    }
  }
  return found
}

/** The virtual server that an element of a data map leads to. */
function serverAt(state: IpvsState, key: string, data: string): unknown {
  const ip = data.slice(0, -4)
  const port = (data.charCodeAt(ip.length) << 8) | data.charCodeAt(ip.length + 1)
  const protocol = { 6: 'TCP', 17: 'UDP', 132: 'SCTP' }[key.charCodeAt(ip.length)]
  return state.servers.get(`${protocol} ${formatIpPort(ip, port)}`)
}
