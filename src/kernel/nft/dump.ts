import type { Clock } from '../../base/clock.ts'
import type { AttributeWriter, ByteView } from '../../netlink/attribute.ts'
import type { Connection } from '../../netlink/connection.ts'
import { NFNL_SUBSYS_NFTABLES, NLM_F_DUMP, NLM_F_REQUEST } from '../../netlink/constants.ts'
import type { Request, Words } from '../../netlink/conversation.ts'
import { errnoNumber, NetlinkError } from '../../netlink/errors.ts'
import {
  encodeMessage,
  type Message,
  NFGENMSG_LENGTH,
  setSequence,
  writeNfGenMsg,
} from '../../netlink/message.ts'
import type { Repetition, Transport } from '../../netlink/transport.ts'
import { NFT_MSG_GETGEN, NFT_MSG_NEWGEN } from './constants.ts'
import { decodeGeneration, familyOf } from './decode.ts'
import type { HookFamily } from './state.ts'
import { familyNumber } from './transaction.ts'

const GETGEN = (NFNL_SUBSYS_NFTABLES << 8) | NFT_MSG_GETGEN
const NEWGEN = (NFNL_SUBSYS_NFTABLES << 8) | NFT_MSG_NEWGEN
const WORDS: Words = { operation: 'read', object: 'nf_tables generation' }

export function generationRequest(): Uint8Array {
  return encodeMessage({ type: GETGEN, flags: NLM_F_REQUEST, sequence: 0 }, out =>
    writeNfGenMsg(out.out, { family: 0, resourceId: 0 }),
  )
}

/** Creates a function that reads the generation with NFT_MSG_GETGEN; the request is encoded once. */
export function generationReader(connection: Connection): () => number {
  const datagram = generationRequest()
  let generation: number | undefined
  const request: Request = {
    ...WORDS,
    build: sequence => setSequence(datagram, sequence),
    onMessage: (view, message) => {
      generation = generationIn(view, message)
    },
  }
  return () => {
    generation = undefined
    connection.roundTrip(request)
    if (generation !== undefined) return generation
    throw new NetlinkError({ ...WORDS, errno: errnoNumber('EPROTO'), extendedAck: 'an empty answer' })
  }
}

/** Head of the attribute NFTA_GEN_ID: 8 bytes, type 1. */
const ID_HEAD = (1 << 16) | 8
const ID_LENGTH = 8

export function isGeneration({ type }: Message): boolean {
  return type === NEWGEN
}

/** Decodes only the generation: the kernel puts it first. */
export function generationIn(view: ByteView, message: Message): number {
  const at = message.start + NFGENMSG_LENGTH
  const { data } = view
  const isFirst = message.end - at >= ID_LENGTH && data.getUint32(at, true) === ID_HEAD
  return isFirst ? data.getUint32(at + 4) : decodeGeneration(view, message).id
}

/** Reads the generation again and again without JavaScript, over a socket of its own. */
export class GenerationWatch {
  readonly #transport: Transport
  readonly #repetition: Repetition

  /** Undefined for a transport that cannot repeat a request, which is closed then. */
  static open(transport: Transport, everyMs: number, changed: () => void): GenerationWatch | undefined {
    const repetition = transport.repeat?.(generationRequest(), everyMs, changed)
    if (repetition !== undefined) return new GenerationWatch(transport, repetition)
    void transport.close()
    return undefined
  }

  private constructor(transport: Transport, repetition: Repetition) {
    this.#transport = transport
    this.#repetition = repetition
  }

  /** Any other generation is news from now on. The kernel puts the attribute right behind what the request has, too. */
  expect(generation: number): void {
    const attribute = new DataView(new ArrayBuffer(ID_LENGTH))
    attribute.setUint32(0, ID_HEAD, true)
    attribute.setUint32(4, generation)
    this.#repetition.expect(new Uint8Array(attribute.buffer))
  }

  stop(): void {
    this.#repetition.stop()
    void this.#transport.close()
  }
}

/** A dump of objects of one table, or of one family. */
interface Dump {
  readonly type: number
  /** For errors: `rules of table`. */
  readonly what: string
  readonly table: { readonly family: HookFamily; readonly name: string }
  /** The table, then the chain or set: attributes 1 and 2 of every message. Kernels without this filter ignore it. */
  readonly within?: readonly string[]
}

export type OnMessage = (view: ByteView, message: Message) => void

/** Creates the request of a dump. It skips messages of other families. */
export function dumpRequest(
  { type, what, table: { family, name }, within = [] }: Dump,
  onMessage: OnMessage,
): Request {
  return {
    operation: 'list',
    object: `${what} ${family} ${name}`,
    build: sequence =>
      getRequest({ type, flags: NLM_F_DUMP, family: familyNumber(family), sequence }, out =>
        within.forEach((its, index) => void out.string(index + 1, its)),
      ),
    onMessage(view, message) {
      if (familyOf(view, message) === family) onMessage(view, message)
    },
  }
}

interface GetMessage {
  readonly type: number
  readonly flags: number
  readonly family: number
  readonly sequence: number
}

/** Encodes one NFT_MSG_GET* request, with a filter; kernels that do not know it ignore it. */
export function getRequest(message: GetMessage, attributes?: (out: AttributeWriter) => void): Uint8Array {
  const { flags, family, sequence } = message
  const type = (NFNL_SUBSYS_NFTABLES << 8) | message.type
  return encodeMessage({ type, flags: NLM_F_REQUEST | flags, sequence }, out => {
    writeNfGenMsg(out.out, { family, resourceId: 0 })
    attributes?.(out)
  })
}

/** A read of state that other programs may change meanwhile. */
interface Reading<T> {
  readonly connection: Connection
  readonly clock: Clock
  readonly read: (attempt: Attempt) => Promise<T>
  /** For the error: `table ip nat`. */
  readonly object: string
  /** Time after which no attempt begins that must be settled, milliseconds. */
  readonly patienceMs?: number
  /** Attempts that must be settled. */
  readonly attemptsMax?: number | undefined
}

export interface Settled<T> {
  readonly value: T
  /** The generation of the whole value; for an unsettled value, the one from which other programs may have changed it. */
  readonly generation: number
  /** Other programs committed during every attempt. */
  readonly unsettled: boolean
}

/** A commit by any program on the node, to any table, restarts a read. */
const ATTEMPTS = 8

/**
 * Reads between two reads of the generation, and retries until no other program commits in between. If other programs
 * commit during every attempt, it reads once more without that condition. Throws NetlinkError: EAGAIN when even that
 * fails.
 */
export async function readSettled<T>(reading: Reading<T>): Promise<Settled<T>> {
  const { connection, clock, read, object, patienceMs = Number.POSITIVE_INFINITY } = reading
  const { attemptsMax = ATTEMPTS } = reading
  const readGeneration = generationReader(connection)
  const deadlineMs = clock.nowMs() + patienceMs
  for (let tries = 1; tries <= attemptsMax && clock.nowMs() < deadlineMs; tries++) {
    const generation = readGeneration()
    const attempt = new Attempt(connection, false)
    const value = await read(attempt)
    if (!attempt.isOver && readGeneration() === generation) return { value, generation, unsettled: false }
    // 5 ms more after each try: another program's commit takes some milliseconds.
    await new Promise<void>(resolve => clock.after(5 * tries, resolve))
  }
  const generation = readGeneration()
  const attempt = new Attempt(connection, true)
  const value = await read(attempt)
  if (!attempt.isOver) return { value, generation, unsettled: true }
  throw new NetlinkError({
    operation: 'list',
    object,
    errno: errnoNumber('EAGAIN'),
    extendedAck: `the ruleset changed during each of ${attemptsMax} attempts`,
  })
}

/** A dump of all tables or chains takes a fraction of the time of a whole listing. */
const SHORT_DUMP_ATTEMPTS = 16

/**
 * One attempt at reading. An unsettled one accepts commits of other programs meanwhile. Dumps of one table's rules,
 * sets and elements do not depend on other tables. Dumps of all tables or all chains may skip ours when another table
 * is removed, so `steadily` repeats them until they are consistent.
 */
export class Attempt {
  readonly connection: Connection
  readonly unsettled: boolean
  #isOver = false
  /** The kernel reported a change during a dump. */
  #torn = false

  constructor(connection: Connection, unsettled: boolean) {
    this.connection = connection
    this.unsettled = unsettled
  }

  /** The attempt cannot succeed any more, and its value does not count. */
  get isOver(): boolean {
    return this.#isOver
  }

  async dump(dump: Dump, onMessage: OnMessage): Promise<void> {
    try {
      this.note(await this.connection.dump(dumpRequest(dump, onMessage)))
    } catch (error) {
      // The listed object has been removed since.
      if (!(error instanceof NetlinkError) || error.code !== 'ENOENT') throw error
      this.#isOver = true
    }
  }

  note(consistent: boolean): void {
    if (consistent) return
    this.#torn = true
    if (!this.unsettled) this.#isOver = true
  }

  /** Runs dumps across all tables; an unsettled attempt repeats them until they are consistent. */
  async steadily<T>(read: () => Promise<T>): Promise<T> {
    for (let tries = 1; ; tries++) {
      this.#torn = false
      const value = await read()
      if (!this.#torn || this.#isOver) return value
      if (tries === SHORT_DUMP_ATTEMPTS) this.#isOver = true
    }
  }
}
