import { formatApiAddress, type RelayAddress, type RelayName } from '../base/api-address.ts'
import { type Cancel, type Clock, within } from '../base/clock.ts'
import { errorOf } from '../base/errors.ts'
import { compareIps, type Ip, parseIp } from '../base/ip.ts'
import { shortLine } from './types.ts'

interface RelayNamesOptions {
  readonly names: readonly RelayName[]
  /** Texts of all addresses of a name, by the resolver of this machine. */
  readonly lookup: (name: string) => Promise<readonly string[]>
  readonly clock: Clock
  readonly random: () => number
  readonly say: (text: string) => void
}

/**
 * A lookup that takes longer is reported as failed, and the first request does not wait longer for the first answers. The
 * next one begins after this time at the earliest, also when no relay answers.
 */
const LOOKUP_MS = 5_000

/** Follows the addresses of DNS names. What could not be resolved again stays as it was. */
export class RelayNames {
  readonly #options: RelayNamesOptions
  readonly #resolved = new Map<RelayName, readonly RelayAddress[]>()
  readonly #failures = new Map<RelayName, string>()
  #running: Promise<void> | undefined
  #first: Promise<unknown> | undefined
  #askedMs = Number.NEGATIVE_INFINITY
  #cancel: Cancel = () => undefined
  #isClosed = false
  changed: () => void = () => undefined

  constructor(options: RelayNamesOptions) {
    this.#options = options
  }

  get addresses(): readonly RelayAddress[] {
    return this.#options.names.flatMap(name => this.#resolved.get(name) ?? [])
  }

  get troubles(): readonly string[] {
    return [...this.#failures].map(([{ name }, why]) => `${name}: ${why}`)
  }

  /** Begins, and resolves once every name was asked for, or did not answer in time. Undefined from then on. */
  ready(): Promise<unknown> | undefined {
    if (this.#first === undefined) this.#first = within(this.#options.clock, LOOKUP_MS, this.#ask())
    return this.#resolved.size + this.#failures.size < this.#options.names.length ? this.#first : undefined
  }

  /** Resolves soon, because no relay answers: their addresses may have changed. */
  hurry(): void {
    if (this.#options.clock.nowMs() - this.#askedMs >= LOOKUP_MS) void this.#ask()
  }

  close(): void {
    this.#isClosed = true
    this.#cancel()
  }

  #ask(): Promise<void> {
    if (this.#isClosed) return Promise.resolve()
    this.#running ??= this.#askAll().finally(() => {
      this.#running = undefined
    })
    return this.#running
  }

  async #askAll(): Promise<void> {
    const { names, clock, random } = this.#options
    const isWell = (name: RelayName): boolean => !this.#failures.has(name)
    const inTurn = [...names.filter(isWell), ...names.filter(name => !isWell(name))]
    this.#cancel()
    this.#askedMs = clock.nowMs()
    // libuv runs two lookups at a time, and the lookup of the API server needs one of them. A lookup that hangs goes last,
    // so that it delays no other one.
    for (const name of inTurn) await this.#resolve(name)
    if (this.#isClosed) return
    // Mean time between two lookups of a name; the system's resolver does not give its TTL.
    this.#cancel = clock.after(30_000 * (0.8 + 0.4 * random()), () => void this.#ask())
  }

  /** Looks one name up. A late lookup, which cannot be cancelled, counts as failed until it ends. */
  async #resolve(name: RelayName): Promise<void> {
    if (this.#isClosed) return
    const { clock, lookup } = this.#options
    const late = (): void => this.#failed(name, `no answer within ${LOOKUP_MS / 1_000} s`)
    const cancel = clock.after(LOOKUP_MS, late)
    try {
      this.#found(name, await lookup(name.name))
    } catch (error) {
      this.#failed(name, shortLine(errorOf(error).message))
    } finally {
      cancel()
    }
  }

  #found(name: RelayName, texts: readonly string[]): void {
    const ips = ipsIn(texts)
    if (ips.length === 0) {
      this.#failed(name, 'it has no addresses')
      return
    }
    const { port, zone } = name
    const found = ips.map(ip => ({ address: { kind: 'tcp', ip, port }, zone, name: name.name }) as const)
    if (this.#failures.delete(name)) this.#options.say(`${name.name} is resolved again`)
    const before = this.#resolved.get(name)
    this.#resolved.set(name, found)
    const isSame =
      before?.length === found.length && found.every(({ address: { ip } }, at) => ip === ipOf(before[at]))
    if (!isSame && !this.#isClosed) this.changed()
  }

  #failed(name: RelayName, why: string): void {
    if (this.#isClosed) return
    const isNew = !this.#failures.has(name)
    this.#failures.set(name, why)
    const known = this.#resolved.get(name)?.length ?? 0
    const rest = known === 0 ? 'no address of it is known yet' : `its last ${known} addresses stay in use`
    if (isNew) this.#options.say(`cannot resolve ${name.name}: ${why}; ${rest}; retrying`)
  }
}

/** Gives the addresses of a name that are used, at most 64 of those of a resolver, in an order that is always the same. */
export function ipsIn(texts: readonly string[]): readonly Ip[] {
  return [...new Set(texts.flatMap(text => parseIp(text) ?? []))].sort(compareIps).slice(0, 64)
}

function ipOf(its: RelayAddress | undefined): string | undefined {
  return its?.address.kind === 'tcp' ? its.address.ip : undefined
}

interface Reader {
  readonly name: string
  /** Empty for none. */
  readonly zone: string
}

/**
 * The relays in the order in which a node asks them: those of its zone, then the others. Within each part (rendezvous hashing)
 * nodes spread over them evenly, and when one comes or goes, only the nodes that have it first move.
 */
export function inOrderFor({ name, zone }: Reader, relays: readonly RelayAddress[]): readonly RelayAddress[] {
  const isNear = (its: RelayAddress): number => (zone !== '' && its.zone === zone ? 1 : 0)
  return relays
    .map(its => ({
      its,
      near: isNear(its),
      weight: hash(`${name} ${formatApiAddress(its.address)}`),
    }))
    .sort((a, b) => b.near - a.near || b.weight - a.weight)
    .map(({ its }) => its)
}

/** FNV-1a with a finish that mixes the last letters, in which addresses differ, into all bits. */
function hash(text: string): number {
  let sum = 0x811c9dc5
  for (let index = 0; index < text.length; index++)
    sum = Math.imul(sum ^ text.charCodeAt(index), 0x01000193) >>> 0
  sum = Math.imul(sum ^ (sum >>> 16), 0x85ebca6b) >>> 0
  sum = Math.imul(sum ^ (sum >>> 13), 0xc2b2ae35) >>> 0
  return (sum ^ (sum >>> 16)) >>> 0
}
