import { lookup as systemLookup } from 'node:dns'
import { isIP, type LookupFunction, type Socket } from 'node:net'
import { type Clock, pause } from '../../../base/clock.ts'

export interface RaceOptions {
  readonly clock: Clock
  /** The system's resolver unless a test replaces it. Addresses are not cached. */
  readonly lookup?: LookupFunction | undefined
  readonly signal: AbortSignal
}

/** RFC 8305 recommends 250 ms for TCP alone; TLS, and the tunnel of a proxy, need more round trips. */
const STAGGER_MS = 500
/** Maximum number of addresses of a name that are tried at once; the others are ignored. */
const ADDRESSES_MAX = 16

/**
 * Gives the first connection that `connect` makes to an address of a host, with all its handshakes (RFC 8305). An attempt
 * begins 500 ms after the one before, or as soon as that has failed, and ends only when another one succeeds or the signal
 * aborts. Rejects with an AggregateError, in the order of the addresses.
 */
export async function firstConnection<T extends Socket>(
  host: string,
  options: RaceOptions,
  connect: (address: string, signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const addresses = await addressesOf(host, options)
  const over = new AbortController()
  const signal = AbortSignal.any([options.signal, over.signal])
  let turn: Promise<unknown> = Promise.resolve()
  let first: T | undefined
  const attempts = addresses.map(address => {
    const attempt = turn.then(async () => {
      signal.throwIfAborted()
      const socket = await connect(address, signal)
      first ??= socket
      if (first !== socket) socket.destroy()
      return first
    })
    const failed = attempt.catch(() => undefined)
    turn = turn.then(() => Promise.race([pause(options.clock, STAGGER_MS, signal), failed]))
    return attempt
  })
  try {
    return await Promise.any(attempts)
  } finally {
    over.abort()
  }
}

async function addressesOf(
  host: string,
  { lookup = systemLookup, signal }: RaceOptions,
): Promise<readonly string[]> {
  if (isIP(host) !== 0) return [host]
  const all = await new Promise<readonly string[]>((resolve, reject) => {
    signal.addEventListener('abort', () => reject(signal.reason), { once: true })
    lookup(host, { all: true }, (error, found) => {
      if (error !== null) reject(error)
      else resolve(typeof found === 'string' ? [found] : found.map(({ address }) => address))
    })
  })
  return alternating([...new Set(all)]).slice(0, ADDRESSES_MAX)
}

/** The families alternate, beginning with that of the resolver's first address: one of them may lead nowhere. */
function alternating(addresses: readonly string[]): readonly string[] {
  const [first = ''] = addresses
  const own = addresses.filter(address => isIP(address) === isIP(first))
  const other = addresses.filter(address => isIP(address) !== isIP(first))
  return addresses.flatMap((_, index) => [own, other].flatMap(list => list.slice(index, index + 1)))
}
