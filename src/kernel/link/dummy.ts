import type { Clock } from '../../base/clock.ts'
import { formatIp, type Ip } from '../../base/ip.ts'
import { Connection, REQUEST_SEQUENCE_MAX } from '../../netlink/connection.ts'
import { type BurstError, type BurstReplies, unknownOutcome, type Words } from '../../netlink/conversation.ts'
import { errnoName, errnoNumber } from '../../netlink/errno.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import { patientBurst } from '../../netlink/patient-burst.ts'
import { SystemError, type Transport } from '../../netlink/transport.ts'
import { findLink, type Link } from './find-link.ts'
import { type AddressChange, encodeChanges, encodeDelLink, encodeNewLink } from './link-messages.ts'
import { ipsOf, listAddresses } from './list-addresses.ts'

/** A device without a wire, whose addresses make the node take packets in (kube-ipvs0). */
export interface DummyClient {
  /** The addresses of the device; undefined when there is no such device. Rejects when it is no dummy. */
  addresses(name: string): Promise<readonly Ip[] | undefined>
  /**
   * Makes the device if need be, and leaves it down. Throws NetlinkError: EOPNOTSUPP where the kernel has no dummy
   * devices, EEXIST where the device of that name is something else.
   */
  ensure(name: string): void
  /** Removes the device with all its addresses; nothing happens when there is none. Throws when it is no dummy. */
  remove(name: string): void
  /**
   * Adds (/32 or /128, without duplicate address detection), then removes; idempotent, so that of a device that is gone
   * nothing can be removed and nothing need be. Rejects when it is no dummy: then nothing was done.
   */
  commit(name: string, changes: AddressChanges): Promise<AddressResult>
  close(): Promise<void>
}

export interface AddressChanges {
  readonly add: readonly Ip[]
  readonly remove: readonly Ip[]
}

export interface AddressResult {
  /** Nobody can say what came of some of the changes: read back. */
  readonly unknown: Error | undefined
  readonly failures: readonly AddressFailure[]
  readonly bytes: number
  readonly messages: number
}

export interface AddressFailure {
  readonly ip: Ip
  /** Name of the errno. */
  readonly code: string
  readonly error: Error
}

export interface DummyClientOptions {
  /** A socket of NETLINK_ROUTE; the client closes it. */
  readonly transport: Transport
  readonly clock: Clock
  /** Longest that one list, or one datagram of a commit, may take. */
  readonly timeoutMs?: number
}

const KIND = 'dummy'
/** The errors of so many fit into a receive buffer that cannot be forced. */
const CHANGES_PER_DATAGRAM = 200
/** So many take a fraction of a millisecond on a device with few addresses; each walks the list of all. */
const SYNC_CHANGES_MAX = 32
const SEQUENCE_FIRST = REQUEST_SEQUENCE_MAX + 1
const SEQUENCE_MAX = 0xffff_ffff

export function createDummyClient(options: DummyClientOptions): DummyClient {
  return new RouteDummyClient(options)
}

class RouteDummyClient implements DummyClient {
  readonly #connection: Connection
  readonly #clock: Clock
  #sequence = SEQUENCE_FIRST

  constructor({ transport, clock, timeoutMs }: DummyClientOptions) {
    this.#connection = new Connection({ transport, clock, ...(timeoutMs === undefined ? {} : { timeoutMs }) })
    this.#clock = clock
  }

  async addresses(name: string): Promise<readonly Ip[] | undefined> {
    const link = this.#find('list addresses of', name)
    if (link === undefined) return undefined
    const all = await listAddresses(this.#connection, this.#clock)
    return ipsOf(all.filter(({ index }) => index === link.index))
  }

  ensure(name: string): void {
    if (this.#find('add', name) !== undefined) return
    try {
      this.#ask({ operation: 'add', object: `device ${name}` }, sequence =>
        encodeNewLink({ name, kind: KIND }, sequence),
      )
    } catch (error) {
      // Somebody else was faster.
      if (codeOf(error) !== 'EEXIST' || this.#find('add', name) === undefined) throw error
    }
  }

  remove(name: string): void {
    const link = this.#find('delete', name)
    if (link === undefined) return
    try {
      this.#ask({ operation: 'delete', object: `device ${name}` }, sequence =>
        encodeDelLink(link.index, sequence),
      )
    } catch (error) {
      if (codeOf(error) !== 'ENODEV') throw error
    }
  }

  async commit(name: string, { add, remove }: AddressChanges): Promise<AddressResult> {
    const changes = [...add.map(ip => changeOf('add', ip)), ...remove.map(ip => changeOf('remove', ip))]
    if (changes.length === 0) return NOTHING
    const link = this.#find('commit addresses of', name)
    if (link === undefined) return withoutDevice(name, add)
    const failures: AddressFailure[] = []
    let [bytes, messages] = [0, 0]
    let unknown: Error | undefined
    while (messages < changes.length && unknown === undefined) {
      const parcel = this.#encode(link, changes.slice(messages, messages + CHANGES_PER_DATAGRAM), name)
      const replies = await this.#send(parcel)
      if (replies instanceof SystemError) {
        for (const { ip } of changes.slice(messages))
          failures.push({ ip, code: replies.code, error: replies })
        break
      }
      failures.push(...failuresOf(parcel, replies))
      unknown = lossOf(parcel, replies)
      bytes += parcel.bytes.length
      messages += parcel.changes.length
    }
    return { unknown, failures, bytes, messages }
  }

  close(): Promise<void> {
    return this.#connection.close()
  }

  /** Throws NetlinkError EEXIST for a device that is no dummy. */
  #find(operation: string, name: string): Link | undefined {
    const link = findLink(this.#connection, name)
    if (link === undefined || link.kind === KIND) return link
    const extendedAck = `it is no dummy device${link.kind === undefined ? '' : ` but a ${link.kind}`}`
    throw new NetlinkError({
      operation,
      object: `device ${name}`,
      errno: errnoNumber('EEXIST'),
      extendedAck,
    })
  }

  #ask(words: Words, build: (sequence: number) => Uint8Array): void {
    this.#connection.roundTrip({ ...words, build, onMessage: () => undefined })
  }

  #encode(link: Link, changes: readonly AddressChange[], name: string): Parcel {
    if (this.#sequence + changes.length > SEQUENCE_MAX) this.#sequence = SEQUENCE_FIRST
    const firstSequence = this.#sequence
    this.#sequence += changes.length
    const bytes = encodeChanges(changes, { index: link.index, firstSequence })
    return { name, changes, firstSequence, bytes }
  }

  #send({ name, bytes, firstSequence, changes }: Parcel): Promise<BurstReplies | SystemError> {
    const has = (sequence: number): boolean =>
      sequence >= firstSequence && sequence < firstSequence + changes.length
    const socket = { connection: this.#connection, clock: this.#clock }
    const pool = changes.length > SYNC_CHANGES_MAX
    return patientBurst(socket, { bytes, has }, { pool, object: `addresses of device ${name}` })
  }
}

/** One datagram. */
interface Parcel {
  /** Of the device. */
  readonly name: string
  readonly changes: readonly AddressChange[]
  readonly firstSequence: number
  readonly bytes: Uint8Array
}

const NOTHING: AddressResult = { unknown: undefined, failures: [], bytes: 0, messages: 0 }

function changeOf(verb: AddressChange['verb'], ip: Ip): AddressChange {
  return { verb, ip }
}

function codeOf(error: unknown): string | undefined {
  return error instanceof NetlinkError ? error.code : undefined
}

function withoutDevice(name: string, add: readonly Ip[]): AddressResult {
  const failures = add.map(ip => {
    const words = wordsFor(changeOf('add', ip), name)
    const extendedAck = 'there is no such device'
    const error = new NetlinkError({ ...words, errno: errnoNumber('ENODEV'), extendedAck })
    return { ip, code: error.code, error }
  })
  return { ...NOTHING, failures }
}

function wordsFor({ verb, ip }: AddressChange, name: string): Words {
  return { operation: `${verb === 'add' ? 'add' : 'delete'} address`, object: `${formatIp(ip)} dev ${name}` }
}

/** What is there, or gone, already is what was asked for; of a device that went meanwhile every address is gone. */
const DONE: Readonly<Record<AddressChange['verb'], ReadonlySet<string>>> = {
  add: new Set(['EEXIST']),
  remove: new Set(['EADDRNOTAVAIL', 'ENODEV']),
}

function failuresOf(parcel: Parcel, { errors }: BurstReplies): readonly AddressFailure[] {
  return errors.flatMap(reply => {
    const change = parcel.changes[reply.sequence - parcel.firstSequence]
    const isDone = change === undefined || DONE[change.verb].has(errnoName(reply.errno))
    return isDone ? [] : [failureOf(change, parcel.name, reply)]
  })
}

function failureOf(change: AddressChange, name: string, reply: BurstError): AddressFailure {
  const error = new NetlinkError({ ...wordsFor(change, name), ...reply })
  return { ip: change.ip, code: error.code, error }
}

/** The last message always has an answer: when it has none, others may lack theirs, too. */
function lossOf({ name, changes, firstSequence }: Parcel, replies: BurstReplies): Error | undefined {
  if (replies.loss !== undefined) return replies.loss
  const last = firstSequence + changes.length - 1
  const isAnswered = replies.acknowledged > 0 || replies.errors.some(({ sequence }) => sequence === last)
  const words = { operation: 'commit', object: `addresses of device ${name}` }
  return isAnswered ? undefined : unknownOutcome(words, 'ENODATA')
}
