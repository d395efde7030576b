import { type Clock, Slice, slicingOf } from '../base/clock.ts'
import type { Ip } from '../base/ip.ts'
import { IpsetClient } from '../kernel/ipset/client.ts'
import { entryKey } from '../kernel/ipset/state.ts'
import { IpvsClient } from '../kernel/ipvs/client.ts'
import type { IpvsHeld } from '../kernel/ipvs/state.ts'
import { type AddressReader, createAddressReader } from '../kernel/link/links.ts'
import { NF_INET_POST_ROUTING } from '../kernel/nft/constants.ts'
import type { IpsetNames } from '../kernel/nft/ipset-match.ts'
import { listAllTables } from '../kernel/nft/list.ts'
import type { AnyTable } from '../kernel/nft/state.ts'
import { type SurveyedChain, surveyChains } from '../kernel/nft/survey.ts'
import { Connection } from '../netlink/connection.ts'
import type { Transport } from '../netlink/transport.ts'

/** The rules of all programs, and what decides outside of nf_tables. */
export interface KernelRules {
  readonly tables: readonly AnyTable[]
  /** Undefined without `usesIpvs`. */
  readonly ipvs: OutsideHeld | undefined
  /** Other programs, or the daemon itself, changed the kernel during each attempt: it may be of several moments. */
  readonly unsettled: boolean
  readonly assumptions: readonly string[]
}

/** The state of IPVS and ipsets, and the addresses of this machine at the same moment. */
export interface OutsideHeld extends IpvsHeld {
  /** Addresses of all devices but that of the mode. */
  readonly ownAddresses: readonly Ip[]
}

export interface RulesSockets {
  readonly netfilter: () => Transport
  readonly generic: () => Transport
  readonly route: () => Transport
}

interface RulesReading {
  readonly sockets: RulesSockets
  readonly clock: Clock
  /** IPVS, ipsets and addresses are read, too. */
  readonly usesIpvs: boolean
  /** The device with the addresses of Services. */
  readonly device: string | undefined
  readonly attemptsMax?: number
  /** Tests whether a table of this name only follows packets, and goes with the command that made it. */
  readonly isPassing: (table: string) => boolean
  readonly known?: (table: Pick<AnyTable, 'family' | 'name'>) => AnyTable | undefined
}

const OUTSIDE =
  'nothing outside of nf_tables decides about packets: legacy iptables, IPVS, eBPF, tc and routes are not read'
const OUTSIDE_IPVS =
  'nothing outside of nf_tables, IPVS and ipsets decides about packets: legacy iptables, eBPF, tc and routes are not read'
const IP_FAMILIES: readonly string[] = ['ip', 'ip6', 'inet']

/** Reads what a proof follows packets through. */
export async function readRules(reading: RulesReading): Promise<KernelRules> {
  const { sockets, usesIpvs } = reading
  const connection = new Connection({ transport: sockets.netfilter(), clock: reading.clock })
  try {
    const read = (ipsets?: IpsetNames) => readTables(connection, { ...reading, ipsets })
    if (!usesIpvs) return await read()
    return await withOutside(sockets, reading, clients =>
      readAll(clients, () => read(clients.ipset), reading),
    )
  } finally {
    await connection.close()
  }
}

/** Throws where what was read is of several moments. */
export function demandSettled({ unsettled }: Pick<KernelRules, 'unsettled'>): void {
  if (unsettled)
    throw new Error(
      'the rules changed during each attempt to read them; nothing is proved: run the command again',
    )
}

async function readTables(
  connection: Connection,
  { ipsets, ...reading }: RulesReading & { readonly ipsets: IpsetNames | undefined },
): Promise<KernelRules> {
  const { value, unsettled } = await listAllTables({ ...reading, connection, ipsets })
  const chains = await surveyChains(connection)
  return {
    tables: value.filter(({ name }) => !reading.isPassing(name)),
    ipvs: undefined,
    unsettled,
    assumptions: assumptionsOf(chains, ipsets !== undefined),
  }
}

/**
 * Reads rules between two reads of all else, which has no generation: what was the same before and after them is of
 * their moment.
 */
async function readAll(
  clients: OutsideClients,
  read: () => Promise<KernelRules>,
  { clock, attemptsMax = 5 }: RulesReading,
): Promise<KernelRules> {
  let before = await readIpvs(clients)
  for (let attempts = 1; ; attempts++) {
    const rules = await read()
    const ipvs = await readIpvs(clients)
    const isSettled = !rules.unsettled && (await isSame(before, ipvs, clock))
    if (isSettled || attempts >= attemptsMax) return { ...rules, ipvs, unsettled: !isSettled }
    before = ipvs
  }
}

async function isSame(a: OutsideHeld, b: OutsideHeld, clock: Clock): Promise<boolean> {
  const slice = new Slice(slicingOf(clock))
  const others = partsOf(b)
  for (const part of partsOf(a)) {
    if (others.next().value !== part) return false
    if (slice.isOver) await slice.next()
  }
  return others.next().done === true
}

function* partsOf(held: OutsideHeld): Generator<string, void, undefined> {
  const { servers, ipsets, addresses, ownAddresses } = held
  yield addresses.join()
  yield ownAddresses.join()
  for (const server of servers) yield JSON.stringify(server)
  for (const { set, entries } of ipsets) {
    yield `${set.name} ${set.type} ${set.family}`
    for (const entry of entries) yield `${entryKey(set.name, entry)} ${entry.nomatch}`
  }
}

function assumptionsOf(chains: readonly SurveyedChain[], usesIpvs: boolean): readonly string[] {
  const others = chains.filter(
    ({ family, chain }) =>
      chain.hook !== undefined &&
      (!IP_FAMILIES.includes(family) || chain.hook.hooknum > NF_INET_POST_ROUTING),
  )
  return [
    usesIpvs ? OUTSIDE_IPVS : OUTSIDE,
    ...others.map(
      ({ family, table, chain }) =>
        `${family} ${table} ${chain.name} lets packets pass: its hook is not read`,
    ),
  ]
}

interface OutsideClients {
  readonly ipset: IpsetClient
  readonly ipvs: IpvsClient
  readonly addresses: AddressReader
  readonly ownAddresses: AddressReader
}

async function withOutside<R>(
  { netfilter, generic, route: openTransport }: RulesSockets,
  { clock, device: except }: Pick<RulesReading, 'clock' | 'device'>,
  use: (clients: OutsideClients) => Promise<R>,
): Promise<R> {
  const ipset = new IpsetClient({ transport: netfilter(), clock })
  const addresses = createAddressReader({ openTransport, clock })
  const ownAddresses = createAddressReader({ openTransport, clock, except })
  let ipvs: IpvsClient | undefined
  try {
    ipvs = new IpvsClient({ transport: generic(), clock })
    return await use({ ipset, ipvs, addresses, ownAddresses })
  } finally {
    await Promise.all([ipset, ipvs, addresses, ownAddresses].map(its => its?.close()))
  }
}

/** Reads what decides outside of nf_tables, of all programs. Ipsets of types that kprobe does not read are left out. */
async function readIpvs({ ipset, ipvs, ...clients }: OutsideClients): Promise<OutsideHeld> {
  const { headers } = await ipset.headers()
  const servers = await ipvs.servers()
  const destinations = await ipvs.destinations(servers)
  return {
    ipsets: await ipset.list(headers.map(({ set }) => set.name)),
    servers: servers.map((server, index) => ({
      server,
      destinations: (destinations[index] ?? []).map(({ destination }) => destination),
    })),
    addresses: await clients.addresses.read(),
    ownAddresses: await clients.ownAddresses.read(),
  }
}
