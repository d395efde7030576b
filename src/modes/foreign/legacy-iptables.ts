import { errorOf } from '../../base/errors.ts'
import type { NftFamily } from '../../kernel/nft/state.ts'
import { KUBE_PROXY } from '../common/kube-proxy.ts'

/** A table of legacy iptables, which nf_tables does not list. */
export interface LegacyTable {
  readonly family: NftFamily
  readonly name: string
  /** User-defined chains; if they are not readable, the reason. */
  readonly chains: readonly LegacyChain[] | string
}

/** Selects the chains of kube-proxy's iptables mode, which has the same chains in legacy iptables and iptables-nft. */
export function kubeProxyChains({ chains }: LegacyTable): readonly LegacyChain[] {
  return typeof chains === 'string' ? [] : chains.filter(({ name }) => KUBE_PROXY.ownsChain(name))
}

type ReadLines = (path: string) => Promise<readonly string[]>

/**
 * Reads the existing tables of this network namespace: a request for another table would create it. It calls libc
 * through FFI, because Node cannot make these system calls. Use it only in short-lived commands: a mistake there
 * crashes the process.
 */
export async function readLegacyTables(readLines: ReadLines): Promise<readonly LegacyTable[]> {
  const places = [
    ...(await readLines('/proc/net/ip_tables_names')).map(name => ({ family: 'ip' as const, name })),
    ...(await readLines('/proc/net/ip6_tables_names')).map(name => ({ family: 'ip6' as const, name })),
  ]
  if (places.length === 0) return []
  const ffi = await import('ffi-rs').catch(() => undefined)
  if (ffi === undefined) return places.map(place => ({ ...place, chains: NO_FFI }))
  return withLibc(ffi, libc => places.map(place => ({ ...place, chains: chainsOf(libc, place) })))
}

const NO_FFI = 'ffi-rs, which is needed for that, is not installed'

type Ffi = typeof import('ffi-rs')
/** Calls a function of libc. Gives its result and errno. */
type Libc = (name: string, ...params: readonly (number | Uint8Array)[]) => { value: number; errno: number }

const LIBRARY = 'libc of kprobe'

function withLibc<T>(ffi: Ffi, use: (libc: Libc) => T): T {
  const { I32, U8Array } = ffi.DataType
  ffi.open({ library: LIBRARY, path: 'libc.so.6' })
  try {
    return use((funcName, ...params) => {
      const result = ffi.load({
        library: LIBRARY,
        funcName,
        retType: I32,
        errno: true,
        paramsType: params.map(param => (typeof param === 'number' ? I32 : U8Array)),
        paramsValue: params.map(param => (typeof param === 'number' ? param : Buffer.from(param.buffer))),
      })
      return typeof result === 'number'
        ? { value: result, errno: 0 }
        : { value: result.value, errno: result.errnoCode }
    })
  } finally {
    ffi.close(LIBRARY)
  }
}

/**
 * Constants of sys/socket.h and netinet/in.h. linux/netfilter_ipv4/ip_tables.h and linux/netfilter_ipv6/ip6_tables.h
 * give the options the same numbers.
 */
const SOCK_RAW = 3
const IPPROTO_RAW = 255
const ADDRESS_FAMILIES: Readonly<Record<NftFamily, number>> = { ip: 2, ip6: 10 }
const LEVELS: Readonly<Record<NftFamily, number>> = { ip: 0, ip6: 41 }
const IPT_SO_GET_INFO = 64
const IPT_SO_GET_ENTRIES = 65
/** struct ipt_getinfo: the name, a mask of hooks, two offsets for each hook, the number of entries, and their size. */
const INFO = { length: 84, size: 80 } as const
/** struct ipt_get_entries: the name, the size of the entries, and the entries, which are aligned to 8. */
const GET = { size: 32, entries: 40 } as const
/** Another program may change the table between the request for the size and that for the entries. */
const TRIES = 3
const EAGAIN = 11

type Place = Pick<LegacyTable, 'family' | 'name'>

function chainsOf(libc: Libc, place: Place): LegacyTable['chains'] {
  try {
    const { value: socket, errno } = libc('socket', ADDRESS_FAMILIES[place.family], SOCK_RAW, IPPROTO_RAW)
    if (socket < 0) return refused('a raw socket', errno)
    try {
      return entriesOf(libc, socket, place)
    } finally {
      libc('close', socket)
    }
  } catch (thrown) {
    return errorOf(thrown).message
  }
}

function entriesOf(libc: Libc, socket: number, place: Place): LegacyTable['chains'] {
  let errno = 0
  for (let tries = 1; tries <= TRIES; tries++) {
    const info = named(INFO.length, place.name)
    const asked = getOption(libc, { socket, place, option: IPT_SO_GET_INFO, value: info })
    if (asked !== 0) return refused('its size', asked)
    const size = info.getUint32(INFO.size, true)
    // Exceeds every table that the tools could still change.
    if (size > 256 << 20) return `it has ${size} bytes, which is too much to read`
    const entries = named(GET.entries + size, place.name)
    entries.setUint32(GET.size, size, true)
    errno = getOption(libc, { socket, place, option: IPT_SO_GET_ENTRIES, value: entries })
    if (errno === 0) return chainsOfBlob(new DataView(entries.buffer, GET.entries), place.family)
    if (errno !== EAGAIN) break
  }
  return refused('its entries', errno)
}

function refused(what: string, errno: number): string {
  const why = errno === 1 || errno === 13 ? 'CAP_NET_ADMIN and CAP_NET_RAW are needed' : `errno ${errno}`
  return `cannot read ${what}: ${why}`
}

function named(length: number, name: string): DataView {
  const bytes = new Uint8Array(length)
  bytes.set(new TextEncoder().encode(name))
  return new DataView(bytes.buffer)
}

interface OptionRequest {
  readonly socket: number
  readonly place: Place
  readonly option: number
  /** The kernel reads and writes it. */
  readonly value: DataView
}

/** Calls getsockopt(2). Gives errno, or 0 on success. */
function getOption(libc: Libc, { socket, place, option, value }: OptionRequest): number {
  const length = new DataView(new ArrayBuffer(4))
  length.setUint32(0, value.byteLength, true)
  const bytes = [value, length].map(view => new Uint8Array(view.buffer))
  const result = libc('getsockopt', socket, LEVELS[place.family], option, ...bytes)
  return result.value < 0 ? result.errno : 0
}

/** One chain of a table of legacy iptables, with the fields that identify its owner. */
interface LegacyChain {
  readonly name: string
  readonly rules: number
}

/** Offsets of the fields of an entry: struct ipt_entry of ip_tables.h, struct ip6t_entry of ip6_tables.h. */
interface EntryLayout {
  readonly targetOffset: number
  readonly nextOffset: number
  readonly length: number
}

const ENTRIES: Readonly<Record<NftFamily, EntryLayout>> = {
  ip: { targetOffset: 88, nextOffset: 90, length: 112 },
  ip6: { targetOffset: 140, nextOffset: 142, length: 168 },
}

/** struct xt_entry_target: its size, the name of the target, a revision, and the target's own data. */
const TARGET_NAME = { offset: 2, length: 29 } as const
const TARGET_LENGTH = 32
/** XT_FUNCTION_MAXNAMELEN: a chain begins with a target ERROR that carries the chain's name. */
const CHAIN_NAME_LENGTH = 30
const ERROR = 'ERROR'

/**
 * Reads the user-defined chains of a table from the entries of IPT_SO_GET_ENTRIES. Each chain begins with a target
 * ERROR and ends with an implicit return. The last ERROR of a table starts no chain. Throws RangeError on a truncated
 * entry.
 */
export function chainsOfBlob(blob: DataView, family: NftFamily): readonly LegacyChain[] {
  const { targetOffset, nextOffset, length } = ENTRIES[family]
  const chains: { name: string; rules: number }[] = []
  let entries = 0
  for (let at = 0; at < blob.byteLength; ) {
    const target = at + blob.getUint16(at + targetOffset, true)
    const next = blob.getUint16(at + nextOffset, true)
    if (next < length) throw new RangeError(`an entry of ${next} bytes at ${at}`)
    if (textAt(blob, target + TARGET_NAME.offset, TARGET_NAME.length) === ERROR) {
      const open = chains.at(-1)
      if (open !== undefined) open.rules = entries - 1
      const name = textAt(blob, target + TARGET_LENGTH, CHAIN_NAME_LENGTH)
      if (at + next < blob.byteLength) chains.push({ name, rules: 0 })
      entries = 0
    } else entries++
    at += next
  }
  return chains
}

/** Reads text up to the first zero byte. */
function textAt(blob: DataView, offset: number, length: number): string {
  let text = ''
  for (let k = 0; k < length; k++) {
    const byte = blob.getUint8(offset + k)
    if (byte === 0) break
    text += String.fromCharCode(byte)
  }
  return text
}
