import type { Clock } from '../../base/clock.ts'
import type { Refused } from '../../netlink/batch.ts'
import { type Answers, Connection, type ConnectionOptions } from '../../netlink/connection.ts'
import type { Request } from '../../netlink/conversation.ts'
import { errnoNumber, NetlinkError } from '../../netlink/errors.ts'
import type { ValuesOf } from '../../netlink/schema.ts'
import { isNetlinkFailure } from '../../netlink/transport.ts'
import {
  appendEntries,
  decodeAs,
  decodeHeader,
  decodeName,
  decodeSet,
  encodeIndexOf,
  encodeList,
  encodeNameOf,
  type Foreign,
  type ListRequest,
  type Piece,
} from './messages.ts'
import {
  failureFrom,
  failureOf,
  isAbsent,
  prepare,
  type Revisions,
  readRevisions,
  runsOf,
  sendPieces,
  sharedRevision,
} from './send.ts'
import {
  INDEX,
  IPSET_FLAG_LIST_HEADER,
  IPSET_FLAG_LIST_SETNAME,
  type Ipset,
  type IpsetEntry,
  type IpsetFailure,
  type IpsetHeader,
  type IpsetListing,
  type IpsetOperation,
  type IpsetType,
} from './state.ts'

interface IpsetHeaders {
  readonly headers: readonly IpsetHeader[]
  /** Names of sets of a type that kprobe does not use. */
  readonly foreign: readonly string[]
}

/** A client for the kernel's ipsets (nfnetlink subsystem NFNL_SUBSYS_IPSET), with the operations that kprobe uses. */
export class IpsetClient {
  readonly #connection: Connection
  readonly #clock: Clock
  readonly #revisions = new Map<string, Revisions>()

  constructor(options: ConnectionOptions) {
    this.#connection = new Connection(options)
    this.#clock = options.clock
  }

  /** Returns the newest revision of a type that kernel and kprobe know; undefined where the kernel lacks the type. */
  revision(type: IpsetType, family: Ipset['family']): number | undefined {
    const revisions = this.#revisionsOf({ type, family })
    return revisions && sharedRevision(type, revisions)
  }

  /** Lists the headers of all sets. Sets of a type or revision that kprobe does not know are in `foreign`. */
  async headers(): Promise<IpsetHeaders> {
    const found = await readHeaders(this.#connection)
    return {
      headers: found.flatMap(header => (isForeign(header) ? [] : [header])),
      foreign: found.filter(isForeign).map(({ name }) => name),
    }
  }

  /** Reads whole sets by name. Skips sets that do not exist and sets of a type that kprobe does not use. */
  async list(names: readonly string[]): Promise<readonly IpsetListing[]> {
    const listings: IpsetListing[] = []
    for (const name of names) {
      const listing = await readSet(this.#connection, name)
      if (listing !== undefined) listings.push(listing)
    }
    return listings
  }

  /**
   * Sends the operations in order in few datagrams. Creating a set that exists with the same type and family is no
   * failure, whatever its size; destroying a set that is gone is none either. The result has the kernel's answers.
   * Rejects only when nothing was sent.
   */
  async commit(operations: readonly IpsetOperation[]): Promise<Answers<IpsetFailure>> {
    const failures: IpsetFailure[] = []
    const sum = { failures, bytes: 0, messages: 0 }
    try {
      for (const run of runsOf(operations)) {
        const loss = await this.#commitRun(run, sum)
        if (loss !== undefined) return { unknown: loss, ...sum }
      }
      return { unknown: undefined, ...sum }
    } catch (error) {
      if (sum.messages === 0 || !isNetlinkFailure(error)) throw error
      return { unknown: error, ...sum }
    }
  }

  /** Adds to `sum`. Returns why the outcome of some operations is unknown. */
  async #commitRun(
    run: readonly IpsetOperation[],
    sum: { readonly failures: IpsetFailure[]; bytes: number; messages: number },
  ): Promise<Error | undefined> {
    const pieces: Piece[] = []
    for (const operation of run) {
      const prepared = prepare(operation, set => this.#revisionsOf(set))
      pieces.push(...prepared.pieces)
      sum.failures.push(...prepared.failures)
    }
    const sent = await sendPieces({ connection: this.#connection, clock: this.#clock }, pieces)
    sum.bytes += sent.bytes
    sum.messages += sent.messages
    for (const refusal of sent.refused) sum.failures.push(...(await this.#failuresOf(refusal)))
    return sent.loss
  }

  /** Returns the kernel's number of a set, by which rules refer to it (IPSET_CMD_GET_BYNAME); undefined for no set. */
  indexOf(name: string): number | undefined {
    return this.#ask({
      operation: 'look up',
      object: `ipset ${name}`,
      build: sequence => encodeIndexOf(name, sequence),
    }).index
  }

  nameOf(index: number): string | undefined {
    return this.#ask({
      operation: 'look up',
      object: `ipset number ${index}`,
      build: sequence => encodeNameOf(index, sequence),
    }).name
  }

  close(): Promise<void> {
    return this.#connection.close()
  }

  #revisionsOf({ type, family }: Pick<Ipset, 'type' | 'family'>): Revisions | undefined {
    const key = `${type} ${family}`
    const revisions = this.#revisions.get(key) ?? readRevisions(this.#connection, { type, family })
    // A missing type is not cached: its module may be loaded later.
    if (revisions !== undefined) this.#revisions.set(key, revisions)
    return revisions
  }

  /** Returns no failure where the kernel already has the wanted state. */
  async #failuresOf(refusal: Refused<Piece>): Promise<readonly IpsetFailure[]> {
    const { operation } = refusal.tag
    if (operation.verb === 'create' && refusal.errno === EEXIST) {
      const [there] = await readHeaders(this.#connection, operation.set.name)
      const extendedAck = there && whyUnlike(there, operation.set)
      return extendedAck === undefined ? [] : [failureOf(operation, [], { ...refusal, extendedAck })]
    }
    const failure = failureFrom(refusal)
    return failure === undefined ? [] : [failure]
  }

  /** Returns the answer to a request about one set; no values when the set does not exist. */
  #ask(request: Omit<Request, 'onMessage'>): ValuesOf<typeof INDEX> {
    let answer: ValuesOf<typeof INDEX> = {}
    try {
      this.#connection.roundTrip({
        ...request,
        onMessage: (view, message) => {
          answer = decodeAs(view, message, INDEX)
        },
      })
    } catch (error) {
      if (!(error instanceof NetlinkError) || error.code !== 'ENOENT') throw error
    }
    return answer
  }
}

const EEXIST = errnoNumber('EEXIST')

/** Returns why an existing set cannot serve as the wanted one; undefined when it can. */
function whyUnlike(there: IpsetHeader | Foreign, { type, family }: Ipset): string | undefined {
  if (isForeign(there)) return `another set has this name: ${there.foreign}`
  const { set } = there
  if (set.type === type && set.family === family) return undefined
  return `another set has this name: it is ${set.type} of ${set.family}, not ${type} of ${family}`
}

/** Reads the headers of all sets, or of one that may not exist. Throws NetlinkError. */
async function readHeaders(
  connection: Connection,
  name?: string,
): Promise<readonly (IpsetHeader | Foreign)[]> {
  const headers: (IpsetHeader | Foreign)[] = []
  const request = { flags: IPSET_FLAG_LIST_HEADER, ...(name === undefined ? {} : { name }) }
  await listSets(connection, request, (view, message) => headers.push(decodeHeader(view, message)))
  return headers
}

function isForeign(header: IpsetHeader | Foreign): header is Foreign {
  return 'foreign' in header
}

/** Reads a whole set; undefined when none of our types has this name. Throws NetlinkError. */
async function readSet(connection: Connection, name: string): Promise<IpsetListing | undefined> {
  let header: IpsetHeader | Foreign | undefined
  const entries: IpsetEntry[] = []
  await listSets(connection, { name }, (view, message) => {
    // Only the first message describes the set.
    header ??= decodeHeader(view, message)
    if (!isForeign(header)) appendEntries(entries, header.set.type, decodeSet(view, message))
  })
  return header === undefined || isForeign(header) ? undefined : { ...header, entries }
}

type OnMessage = Parameters<Connection['dump']>[0]['onMessage']

async function listSets(connection: Connection, request: ListRequest, onMessage: OnMessage): Promise<void> {
  try {
    await connection.dump({
      operation: 'list',
      object: request.name === undefined ? 'ipsets' : `ipset ${request.name}`,
      build: sequence => encodeList(request, sequence),
      onMessage,
    })
  } catch (error) {
    const isMissing = error instanceof NetlinkError && error.code === 'ENOENT' && request.name !== undefined
    if (!isMissing) throw error
  }
}

/** Lists the names of all ipsets; none where the kernel has no ipsets. Throws NetlinkError. */
export async function listIpsetNames(connection: Connection): Promise<readonly string[]> {
  const names = new Set<string>()
  try {
    await connection.dump({
      operation: 'list',
      object: 'names of ipsets',
      build: listRequest,
      onMessage: (view, message) => names.add(decodeName(view, message)),
    })
  } catch (error) {
    if (!isAbsent(error)) throw error
  }
  names.delete('')
  return [...names]
}

/** Encodes IPSET_CMD_LIST for names only: one short message per set. */
export function listRequest(sequence: number): Uint8Array {
  return encodeList({ flags: IPSET_FLAG_LIST_SETNAME }, sequence)
}
