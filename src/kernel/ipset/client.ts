import type { Clock } from '../../base/clock.ts'
import type { Refused } from '../../netlink/batch.ts'
import { Connection } from '../../netlink/connection.ts'
import type { Request } from '../../netlink/conversation.ts'
import { errnoNumber } from '../../netlink/errno.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import type { ValuesOf } from '../../netlink/schema.ts'
import type { Transport } from '../../netlink/transport.ts'
import { IPSET_FLAG_LIST_HEADER } from './constants.ts'
import { appendEntries, decodeAs, decodeHeader, decodeSet, type Foreign } from './decode.ts'
import type { IpsetFailure } from './failure.ts'
import { encodeIndexOf, encodeList, encodeNameOf, type ListRequest } from './messages.ts'
import type { IpsetOperation } from './operation.ts'
import type { Piece } from './piece.ts'
import { failureFrom, failureOf, prepare, runsOf } from './prepare.ts'
import { type Revisions, readRevisions, sharedRevision } from './revisions.ts'
import { INDEX } from './schema.ts'
import { sendPieces } from './send.ts'
import type { Ipset, IpsetEntry, IpsetHeader, IpsetListing, IpsetType } from './state.ts'

export type { IpsetFailure }

/** The kernel's ipsets, as far as this project speaks with them: nfnetlink subsystem NFNL_SUBSYS_IPSET. */
export interface IpsetClient {
  /** The newest revision of a type that both the kernel and this program know; undefined where the kernel lacks it. */
  revision(type: IpsetType, family: 'IPv4' | 'IPv6'): number | undefined
  /** Those of types and revisions that this program does not know have no header: see `foreign`. */
  headers(): Promise<IpsetHeaders>
  /** Whole sets, by name; those that do not exist are left out, as are those that are of no type of ours. */
  list(names: readonly string[]): Promise<readonly IpsetListing[]>
  /**
   * Sends the operations one after the other in few datagrams. A set to create that is there, of the same type and
   * family, is no failure whatever its size; neither is one to destroy that is gone. What the kernel says is in the
   * result; only bugs of ours throw.
   */
  commit(operations: readonly IpsetOperation[]): Promise<IpsetResult>
  /** The kernel's number of a set, by which rules refer to it (IPSET_CMD_GET_BYNAME); undefined when there is none. */
  indexOf(name: string): number | undefined
  /** IPSET_CMD_GET_BYINDEX. */
  nameOf(index: number): string | undefined
  close(): Promise<void>
}

interface IpsetHeaders {
  readonly headers: readonly IpsetHeader[]
  /** Names of sets that are of no type of ours. */
  readonly foreign: readonly string[]
}

export interface IpsetResult {
  /** Nobody can say what came of some of the operations: read back. */
  readonly unknown: Error | undefined
  readonly failures: readonly IpsetFailure[]
  readonly bytes: number
  readonly messages: number
}

interface IpsetClientOptions {
  /** A socket of NETLINK_NETFILTER. */
  readonly transport: Transport
  readonly clock: Clock
  /** Longest that one list, or one send, may take. */
  readonly timeoutMs?: number
}

export function createIpsetClient(options: IpsetClientOptions): IpsetClient {
  return new NetlinkIpsetClient(options)
}

class NetlinkIpsetClient implements IpsetClient {
  readonly #connection: Connection
  readonly #clock: Clock
  readonly #revisions = new Map<string, Revisions>()

  constructor({ transport, clock, timeoutMs }: IpsetClientOptions) {
    this.#connection = new Connection({ transport, clock, timeoutMs })
    this.#clock = clock
  }

  revision(type: IpsetType, family: Ipset['family']): number | undefined {
    const revisions = this.#revisionsOf({ type, family })
    return revisions && sharedRevision(type, revisions)
  }

  async headers(): Promise<IpsetHeaders> {
    const found = await readHeaders(this.#connection)
    return {
      headers: found.flatMap(header => (isForeign(header) ? [] : [header])),
      foreign: found.filter(isForeign).map(({ name }) => name),
    }
  }

  async list(names: readonly string[]): Promise<readonly IpsetListing[]> {
    const listings: IpsetListing[] = []
    for (const name of names) {
      const listing = await readSet(this.#connection, name)
      if (listing !== undefined) listings.push(listing)
    }
    return listings
  }

  async commit(operations: readonly IpsetOperation[]): Promise<IpsetResult> {
    const link = { connection: this.#connection, clock: this.#clock }
    const failures: IpsetFailure[] = []
    let [bytes, messages] = [0, 0]
    for (const run of runsOf(operations)) {
      const pieces: Piece[] = []
      for (const operation of run) {
        const prepared = prepare(operation, set => this.#revisionsOf(set))
        pieces.push(...prepared.pieces)
        failures.push(...prepared.failures)
      }
      const sent = await sendPieces(link, pieces)
      bytes += sent.bytes
      messages += sent.messages
      for (const refusal of sent.refused) failures.push(...(await this.#failuresOf(refusal)))
      if (sent.loss !== undefined) return { unknown: sent.loss, failures, bytes, messages }
    }
    return { unknown: undefined, failures, bytes, messages }
  }

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
    // What is missing may come: a module that is loaded.
    if (revisions !== undefined) this.#revisions.set(key, revisions)
    return revisions
  }

  /** None, where what was asked for is so all the same. */
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

  /** The answer to a question about one set; nothing when there is no such set. */
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

/** Why a set that is there cannot serve as the one that was to be made; undefined when it can. */
function whyUnlike(there: IpsetHeader | Foreign, { type, family }: Ipset): string | undefined {
  if (isForeign(there)) return `there is another of this name: ${there.foreign}`
  const { set } = there
  if (set.type === type && set.family === family) return undefined
  return `there is another of this name: it is ${set.type} of ${set.family}, not ${type} of ${family}`
}

/** What the kernel says of all sets, or of one that may not exist. Throws NetlinkError. */
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

/** A whole set; undefined when there is none of this name, or none of ours. Throws NetlinkError. */
async function readSet(connection: Connection, name: string): Promise<IpsetListing | undefined> {
  let header: IpsetHeader | Foreign | undefined
  const entries: IpsetEntry[] = []
  await listSets(connection, { name }, (view, message) => {
    // Only the first message tells what the set is.
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
