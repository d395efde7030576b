import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { createServer } from 'node:net'
import { systemClock } from '../base/clock.ts'
import { failureText } from '../base/errors.ts'
import { formatIp, type Ip } from '../base/ip.ts'
import { count } from '../base/text.ts'
import { KERNEL } from '../daemon/open.ts'
import { createIpsetClient } from '../kernel/ipset/client.ts'
import type { Ipset, IpsetOperation } from '../kernel/ipset/state.ts'
import { createIpvsClient } from '../kernel/ipvs/client.ts'
import type { HeldIpset, HeldServer, IpvsOperation } from '../kernel/ipvs/state.ts'
import { createDummyClient } from '../kernel/link/dummy.ts'
import { writeSysctl } from '../kernel/sysctl/sysctls.ts'
import { MODE_DEVICE } from '../modes/registry.ts'
import type { HeldListener, OutsideFile } from './bundle-kernel.ts'

/**
 * Loads what a bundle has beside nf_tables: ipsets, which rules refer to, then addresses and virtual servers of IPVS.
 * Gives what this kernel did not take.
 */
export async function loadOutside(file: OutsideFile): Promise<readonly string[]> {
  const { ipvs, ownAddresses } = file
  if (ipvs === undefined) return []
  const { ipsets, servers, addresses } = ipvs
  const own = new Set(ownAddresses)
  const bound = addresses.filter(ip => !own.has(ip))
  return [
    ...(await loaded(count(ipsets.length, 'ipset'), 'ipset.txt', () => loadSets(file, ipsets))),
    ...(await loaded(`${bound.length} addresses of ${MODE_DEVICE}`, 'kernel.json', () =>
      loadAddresses(bound),
    )),
    ...(await loaded(count(servers.length, 'virtual server'), 'ipvs.txt', () => loadServers(servers))),
  ]
}

/** Gives one sentence for objects that failed, of which `load` gives the errors. */
async function loaded(
  what: string,
  file: string,
  load: () => Promise<readonly Error[]>,
): Promise<readonly string[]> {
  let errors: readonly unknown[]
  try {
    errors = await load()
  } catch (error) {
    errors = [error]
  }
  const [first] = errors
  if (first === undefined) return []
  const more = errors.length > 1 ? ` (and ${count(errors.length - 1, 'more error')})` : ''
  return [`not loaded: ${what}: ${failureText(first)}${more}; ${file} of the bundle has them`]
}

/** Bounds the numbers of ipsets that a bundle can ask for. */
const NUMBERS_MAX = 4_096
const filler = (number: number): Ipset => ({
  name: `kprobe-replay-${number}`,
  type: 'hash:ip',
  family: 'IPv4',
  maxElements: 1,
  hashSize: 1,
})

/** Makes sets with the numbers that they had: rules refer to a set by its number, and the kernel gives the lowest free one. */
async function loadSets({ names }: OutsideFile, held: readonly HeldIpset[]): Promise<readonly Error[]> {
  const byName = new Map(held.map(({ set }) => [set.name, set]))
  const last = Math.max(-1, ...[...names.keys()].filter(number => number < NUMBERS_MAX))
  const made = Array.from({ length: last + 1 }, (_, at) => byName.get(names.get(at) ?? '') ?? filler(at))
  const rest = held.map(({ set }) => set).filter(set => !made.includes(set))
  const operations: readonly IpsetOperation[] = [
    ...[...made, ...rest].map(set => ({ verb: 'create', set }) as const),
    ...made.filter(({ name }) => !byName.has(name)).map(({ name }) => ({ verb: 'destroy', name }) as const),
    ...held.map(({ set, entries }) => {
      const groups = entries.map(() => '')
      return { verb: 'add-entries', set, entries, groups } as const
    }),
  ]
  if (operations.length === 0) return []
  const client = createIpsetClient({ transport: KERNEL.netfilter(), clock: systemClock })
  try {
    return errorsOf(await client.commit(operations))
  } finally {
    await client.close()
  }
}

interface Answers {
  readonly unknown: Error | undefined
  readonly failures: readonly { readonly error: Error }[]
}

function errorsOf({ unknown, failures }: Answers): readonly Error[] {
  return [...failures.map(({ error }) => error), ...(unknown === undefined ? [] : [unknown])]
}

async function loadAddresses(ips: readonly Ip[]): Promise<readonly Error[]> {
  if (ips.length === 0 || MODE_DEVICE === undefined) return []
  const client = createDummyClient({ transport: KERNEL.route(), clock: systemClock })
  try {
    client.ensure(MODE_DEVICE)
    return errorsOf(await client.commit(MODE_DEVICE, { add: ips, remove: [] }))
  } finally {
    await client.close()
  }
}

async function loadServers(servers: readonly HeldServer[]): Promise<readonly Error[]> {
  if (servers.length === 0) return []
  const client = createIpvsClient({ transport: KERNEL.generic(), clock: systemClock })
  const operations = servers.flatMap(({ server, destinations }): readonly IpvsOperation[] => [
    { verb: 'set-server', group: '', server, isNew: true },
    // The kernel lists the one first that was added last.
    ...[...destinations]
      .reverse()
      .map(
        destination => ({ verb: 'set-destination', group: '', server, destination, isNew: true }) as const,
      ),
  ])
  try {
    return errorsOf(await client.commit(operations))
  } finally {
    await client.close()
  }
}

/** A bundle with more makes a replay slow; `dump` says of the others that no process listens. */
const LISTENERS_MAX = 10_000

/** Listens where processes of the node did, while the command runs. Nobody connects: the namespace has no device that is up. */
export async function openListeners(listeners: readonly HeldListener[]): Promise<readonly string[]> {
  if (listeners.length === 0) return []
  for (const family of ['ipv4', 'ipv6']) await writeSysctl(`/proc/sys/net/${family}/ip_nonlocal_bind`, 1)
  const failed: unknown[] = []
  for (const listener of listeners.slice(0, LISTENERS_MAX))
    await listen(listener).catch(error => failed.push(error))
  const [first] = failed
  const over = listeners.length - LISTENERS_MAX
  return [
    ...(first === undefined
      ? []
      : [`not opened: ${count(failed.length, 'listener')}: ${failureText(first)}`]),
    ...(over > 0 ? [`not opened: ${count(over, 'more listener')}`] : []),
  ]
}

/** Listens at a place until the process ends, and does not keep it. */
async function listen({ protocol, ip, port }: HeldListener): Promise<void> {
  const host = formatIp(ip)
  if (protocol === 'TCP') {
    const server = createServer().listen({ host, port, ipv6Only: true }).unref()
    await once(server, 'listening')
  } else {
    const type = ip.length === 4 ? 'udp4' : 'udp6'
    const socket = createSocket({ type, ipv6Only: type === 'udp6' }).unref()
    socket.bind(port, host)
    await once(socket, 'listening')
  }
}
