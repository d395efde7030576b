import { systemClock } from '../base/clock.ts'
import { failureText } from '../base/errors.ts'
import { FAMILIES, formatIp, type Ip, parseIp } from '../base/ip.ts'
import { KERNEL } from '../daemon/open.ts'
import { BITMAP_ELEMENTS_MAX, type IpsetEntry, setTypeOf } from '../kernel/ipset/state.ts'
import type { HeldIpset, HeldServer, IpvsHeld } from '../kernel/ipvs/state.ts'
import type { Listener } from '../kernel/socket/listeners.ts'
import { isJson, type Json } from '../model/fields.ts'
import { MODE_DEVICE } from '../modes/registry.ts'
import { type OutsideHeld, readIpvs, withOutside } from '../proof/kernel-rules.ts'
import { type Bundle, jsonIn } from './bundle.ts'
import { readListeners } from './programmed.ts'

/* kernel.json of a bundle: what decides about packets outside of nf_tables. */

export const KERNEL_FILE = 'kernel.json'

/** Reads the file. What this kernel lacks is named in it. */
export async function kernelText(): Promise<string> {
  return await withOutside(KERNEL, { clock: systemClock, device: MODE_DEVICE }, async clients => {
    let held: OutsideHeld | undefined
    let lacking: string | undefined
    try {
      held = await readIpvs(clients)
    } catch (error) {
      lacking = failureText(error)
    }
    const ownAddresses = held?.ownAddresses ?? (await clients.ownAddresses.read())
    return JSON.stringify({
      addresses: (held?.addresses ?? ownAddresses).map(formatIp),
      ownAddresses: ownAddresses.map(formatIp),
      listeners: readListeners()?.map(({ protocol, ip, port }) => ({ protocol, ip: formatIp(ip), port })),
      ...(lacking === undefined ? {} : { lacking }),
      ...(held && { ipsets: held.ipsets.map(its => ipsetJson(its, clients.names.indexOf(its.set.name))) }),
      ...(held && { servers: held.servers.map(serverJson) }),
    })
  })
}

function ipsetJson({ set: { name, ...set }, entries }: HeldIpset, index: number | undefined): Json {
  return {
    set: name,
    index,
    ...set,
    entries: entries.map(({ ip, ip2, ...rest }) => ({
      ...rest,
      ...(ip === undefined ? {} : { ip: formatIp(ip) }),
      ...(ip2 === undefined ? {} : { ip2: formatIp(ip2) }),
    })),
  }
}

function serverJson({ server, destinations }: HeldServer): Json {
  return {
    ...server,
    ip: formatIp(server.ip),
    destinations: destinations.map(its => ({ ...its, ip: formatIp(its.ip) })),
  }
}

/** What a bundle says of the kernel beside nf_tables. */
export interface OutsideFile {
  /** Addresses of this machine without those of Services; undefined in a bundle of an older build. */
  readonly ownAddresses: readonly Ip[] | undefined
  /** Undefined where the kernel had no IPVS or no ipsets, or in a bundle of an older build. */
  readonly ipvs: IpvsHeld | undefined
  /** Names of ipsets, by the kernel's number. */
  readonly names: ReadonlyMap<number, string>
  /** Why there is no IPVS. */
  readonly lacking: string
  /** Of all processes; none in a bundle of an older build. */
  readonly listeners: readonly HeldListener[]
}

/** Where a process of the node accepts connections. */
export type HeldListener = Pick<Listener, 'protocol' | 'ip' | 'port'>

/** Reads what a bundle has. Throws an Error that says what is wrong with it. */
export function outsideIn(bundle: Bundle): OutsideFile {
  const value = jsonIn(bundle, KERNEL_FILE)
  const names = new Map<number, string>()
  const lacking = `it has no ${KERNEL_FILE}`
  if (value === undefined) return { ownAddresses: undefined, ipvs: undefined, names, lacking, listeners: [] }
  const file = record(value)
  const ownAddresses = list(file.ownAddresses).map(address)
  const listeners = list(file.listeners ?? []).map(listenerOf)
  if (file.servers === undefined || file.ipsets === undefined)
    return { ownAddresses, ipvs: undefined, names, lacking: String(file.lacking), listeners }
  const ipsets = list(file.ipsets).map((each): HeldIpset => {
    const { set, index, type, family, maxElements, hashSize, entries: written } = record(each)
    const known = setTypeOf(text(type))
    const ofFamily = FAMILIES.find(its => its === family)
    if (known === undefined || ofFamily === undefined) throw wrong()
    if (index !== undefined) names.set(number(index), text(set))
    const entries = list(written).map(entryOf)
    // Bundles of older builds do not say sizes.
    const size = 2 ** Math.ceil(Math.log2(Math.max(entries.length, BITMAP_ELEMENTS_MAX)))
    const sizes = { maxElements: number(maxElements ?? size), hashSize: number(hashSize ?? 1_024) }
    return { set: { name: text(set), type: known, family: ofFamily, ...sizes }, entries }
  })
  const servers = list(file.servers).map(serverOf)
  return {
    ownAddresses,
    ipvs: { ipsets, servers, addresses: list(file.addresses).map(address) },
    names,
    lacking: '',
    listeners,
  }
}

function listenerOf(value: unknown): HeldListener {
  const { protocol, ip, port } = record(value)
  if (protocol !== 'TCP' && protocol !== 'UDP') throw wrong()
  return { protocol, ip: address(ip), port: number(port) }
}

function entryOf(value: unknown): IpsetEntry {
  const { ip, protocol, port, ip2, prefix2, nomatch } = record(value)
  if (nomatch !== undefined && nomatch !== true) throw wrong()
  return {
    ...(ip === undefined ? {} : { ip: address(ip) }),
    ...(protocol === undefined ? {} : { protocol: number(protocol) }),
    ...(port === undefined ? {} : { port: number(port) }),
    ...(ip2 === undefined ? {} : { ip2: address(ip2) }),
    ...(prefix2 === undefined ? {} : { prefix2: number(prefix2) }),
    ...(nomatch === undefined ? {} : { nomatch: true }),
  }
}

function serverOf(value: unknown): HeldServer {
  const { protocol, ip, port, scheduler, flags, timeoutS, netmask, destinations } = record(value)
  const known = (['TCP', 'UDP', 'SCTP'] as const).find(its => its === protocol)
  if (known === undefined) throw wrong()
  return {
    server: {
      protocol: known,
      ip: address(ip),
      port: number(port),
      scheduler: text(scheduler),
      flags: number(flags),
      timeoutS: number(timeoutS),
      netmask: number(netmask),
    },
    destinations: list(destinations).map(each => {
      const its = record(each)
      return {
        ip: address(its.ip),
        port: number(its.port),
        weight: number(its.weight),
        forwarding: number(its.forwarding),
      }
    }),
  }
}

function wrong(): Error {
  return new Error(`has a ${KERNEL_FILE} that kprobe did not write`)
}

function record(value: unknown): Json {
  if (!isJson(value)) throw wrong()
  return value
}

function list(value: unknown): readonly unknown[] {
  if (!Array.isArray(value)) throw wrong()
  return value
}

function text(value: unknown): string {
  if (typeof value !== 'string') throw wrong()
  return value
}

function number(value: unknown): number {
  if (typeof value !== 'number' || !Number.isInteger(value) || value < 0 || value > 0xffff_ffff) throw wrong()
  return value
}

function address(value: unknown): Ip {
  const ip = parseIp(text(value))
  if (ip === undefined) throw wrong()
  return ip
}
