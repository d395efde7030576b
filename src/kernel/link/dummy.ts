import type { Clock } from '../../base/clock.ts'
import { formatIp, type Ip } from '../../base/ip.ts'
import { type Refused, sendEach } from '../../netlink/batch.ts'
import { type Answers, Connection, type ConnectionOptions } from '../../netlink/connection.ts'
import type { Words } from '../../netlink/conversation.ts'
import { errnoName, errnoNumber, NetlinkError } from '../../netlink/errors.ts'
import {
  type AddressChange,
  CHANGE_BYTES_MAX,
  encodeDelLink,
  encodeNewLink,
  findLink,
  ipsOf,
  type Link,
  listAddresses,
  writeChange,
} from './links.ts'

interface AddressChanges {
  readonly add: readonly Ip[]
  readonly remove: readonly Ip[]
}

interface AddressFailure {
  readonly ip: Ip
  readonly code: string
  readonly error: Error
}

const KIND = 'dummy'
/** The errors of this many changes fit into a receive buffer that cannot be forced. */
const CHANGES_PER_DATAGRAM = 200

/** A client for a device without a wire. Its addresses make the node accept packets (kube-ipvs0). */
export class DummyClient {
  readonly #connection: Connection
  readonly #clock: Clock

  /** Over a NETLINK_ROUTE socket, which the client closes. */
  constructor(options: ConnectionOptions) {
    this.#connection = new Connection(options)
    this.#clock = options.clock
  }

  /** Reads the addresses of the device; undefined when it does not exist. Rejects when it is not a dummy device. */
  async addresses(name: string): Promise<readonly Ip[] | undefined> {
    const link = this.#find('list addresses of', name)
    if (link === undefined) return undefined
    const all = await listAddresses(this.#connection, this.#clock)
    return ipsOf(all.filter(({ index }) => index === link.index))
  }

  /**
   * Creates the device if necessary and leaves it down. Throws NetlinkError: EOPNOTSUPP where the kernel has no dummy
   * devices, EEXIST where the name belongs to another kind of device.
   */
  ensure(name: string): void {
    if (this.#find('add', name) !== undefined) return
    try {
      this.#ask({ operation: 'add', object: `device ${name}` }, sequence =>
        encodeNewLink({ name, kind: KIND }, sequence),
      )
    } catch (error) {
      // Another program created the device first.
      if (codeOf(error) !== 'EEXIST' || this.#find('add', name) === undefined) throw error
    }
  }

  /** Removes the device with all its addresses, if it exists. Throws when it is not a dummy device. */
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

  /**
   * Adds (/32 or /128, without duplicate address detection), then removes. It is idempotent; removing from a device
   * that is gone succeeds. Rejects when the device is not a dummy: then nothing was done.
   */
  async commit(name: string, { add, remove }: AddressChanges): Promise<Answers<AddressFailure>> {
    const changes = [...add.map(ip => changeOf('add', ip)), ...remove.map(ip => changeOf('remove', ip))]
    if (changes.length === 0) return NOTHING
    const link = this.#find('commit addresses of', name)
    if (link === undefined) return withoutDevice(name, add)
    const socket = { connection: this.#connection, clock: this.#clock }
    const { refused, loss, bytes, messages } = await sendEach(socket, changes, {
      object: `addresses of device ${name}`,
      write: (batch, change) => writeChange(batch, change, link.index),
      bytesMax: () => CHANGE_BYTES_MAX,
      messagesMax: CHANGES_PER_DATAGRAM,
      // Fewer take a fraction of a millisecond on a device with few addresses; each walks its whole list.
      isLong: some => some.length > 32,
    })
    const failures = refused.filter(each => !isDone(each)).map(each => failureOf(each, name))
    return { unknown: loss, failures, bytes, messages }
  }

  close(): Promise<void> {
    return this.#connection.close()
  }

  /** Finds the device. Throws NetlinkError EEXIST if it is not a dummy device. */
  #find(operation: string, name: string): Link | undefined {
    const link = findLink(this.#connection, name)
    if (link === undefined || link.kind === KIND) return link
    const extendedAck = `it is not a dummy device${link.kind === undefined ? '' : ` but of kind ${link.kind}`}`
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
}

const NOTHING: Answers<AddressFailure> = { unknown: undefined, failures: [], bytes: 0, messages: 0 }

function changeOf(verb: AddressChange['verb'], ip: Ip): AddressChange {
  return { verb, ip }
}

function codeOf(error: unknown): string | undefined {
  return error instanceof NetlinkError ? error.code : undefined
}

function withoutDevice(name: string, add: readonly Ip[]): Answers<AddressFailure> {
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

/** Errors that mean success: the address exists, or it or its device is gone. */
const DONE: Readonly<Record<AddressChange['verb'], ReadonlySet<string>>> = {
  add: new Set(['EEXIST']),
  remove: new Set(['EADDRNOTAVAIL', 'ENODEV']),
}

function isDone({ tag, errno }: Refused<AddressChange>): boolean {
  return DONE[tag.verb].has(errnoName(errno))
}

function failureOf({ tag, ...refused }: Refused<AddressChange>, name: string): AddressFailure {
  const error = new NetlinkError({ ...wordsFor(tag, name), ...refused })
  return { ip: tag.ip, code: error.code, error }
}
