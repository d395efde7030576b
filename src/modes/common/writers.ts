import type { Clock } from '../../base/clock.ts'
import {
  type CommitResult,
  createNftClient,
  type NftClient,
  type TableName,
} from '../../kernel/nft/client.ts'
import { GenerationWatch } from '../../kernel/nft/dump.ts'
import { type ForeignCommitsOptions, type Touched, watchForeignCommits } from '../../kernel/nft/monitor.ts'
import type { Table } from '../../kernel/nft/state.ts'
import type { Operation, Transaction } from '../../kernel/nft/transaction.ts'
import type { Transport } from '../../netlink/transport.ts'
import {
  counterOf,
  type Dataplane,
  type Generation,
  generationOf,
  type WriterCommit,
} from '../../reconcile/dataplane.ts'
import { NFT_FAMILIES } from './tables.ts'

export interface WatchedSocket {
  readonly openTransport: () => ForeignCommitsOptions['transport']
  readonly own: number
}

export interface ClientContext {
  readonly sockets: { readonly netfilter: () => Transport }
  readonly clock: Clock
}

/** Makes a client of nf_tables for the duration of `use`. */
export async function withNftClient<T>(
  { sockets, clock }: ClientContext,
  use: (client: NftClient) => Promise<T>,
): Promise<T> {
  const client = createNftClient({ transport: sockets.netfilter(), clock })
  try {
    return await use(client)
  } finally {
    await client.close()
  }
}

/** Reads the tables `ip` and `ip6` of this name. */
export async function tablesNamed(client: NftClient, name: string): Promise<readonly Table[]> {
  return (await client.list(bothNamed(name))).ruleset.tables
}

/** The watches of a plane that counts generations as `offset` more than nf_tables does. */
export interface Watches extends Pick<Dataplane<unknown>, 'watchWriters'> {
  readonly watchGeneration: NonNullable<Dataplane<unknown>['watchGeneration']>
  /** Gives the plane's generation for one of nf_tables. */
  readonly shifted: (generation: number) => Generation
  readonly unshifted: (generation: Generation) => number
}

/**
 * Makes the watches, each over a socket of its own, which is closed with the watch. Without `socket`, the reconciler polls
 * the generation, and the log of drift names no process. `touchesUs` tests whether a changed object is ours or leads to
 * ours.
 */
export function watchesOf(
  socket: WatchedSocket | undefined,
  touchesUs: (touched: Touched) => boolean,
  offset: () => number = () => 0,
): Watches {
  const shifted = (generation: number) => generationOf((generation + offset()) >>> 0)
  const unshifted = (generation: Generation) => (counterOf(generation) - offset()) >>> 0
  return {
    shifted,
    unshifted,
    watchGeneration(everyMs, changed) {
      const watch = socket && GenerationWatch.open(socket.openTransport(), everyMs, changed)
      return watch && { expect: generation => watch.expect(unshifted(generation)), stop: () => watch.stop() }
    },
    watchWriters(report) {
      if (socket === undefined) return () => undefined
      return foreignCommits(socket, touchesUs, ({ generation, ...commit }) =>
        report({ ...commit, generation: shifted(generation) }),
      )
    },
  }
}

function foreignCommits(
  { openTransport, own }: WatchedSocket,
  concerns: (touched: Touched) => boolean,
  report: (commit: Omit<WriterCommit, 'generation'> & { readonly generation: number }) => void,
): () => void {
  const transport = openTransport()
  const commits = watchForeignCommits({
    transport,
    ownPortIds: new Set([own]),
    concerns,
    onCommit: ({ generation, processId = 0, processName = 'an unnamed process', concerned, complete }) => {
      // An incomplete notification proves nothing. The generation poll finds the commit.
      if (concerned || complete)
        report({ generation, processId, processName, own: false, touchesUs: concerned })
    },
    // The generation poll still finds the commit. Without its notification the writer stays unnamed.
    onOverrun: () => undefined,
  })
  return () => {
    commits.stop()
    // The socket only receives, so nothing is in flight.
    void transport.close()
  }
}

/** Makes the `touchesUs` of a mode whose objects are its own tables `ip` and `ip6` of this name. */
export function inTables(name: string): (touched: Touched) => boolean {
  return ({ family, table }) => table === name && (family === 'ip' || family === 'ip6')
}

/** Maximum number of tries. A commit names the generation that was read; a foreign commit since then needs another try. */
const TRIES = 16

export interface AsRead<T> {
  readonly value: T
  readonly transaction: Transaction
}

/**
 * Commits the changes that `read` computes from what it reads from the kernel, in one transaction. Reads
 * again when another program committed in between, or when the outcome of the commit is unknown. Gives the value of the
 * read that the commit was based on. Throws an error that begins with `what` when the kernel rejects the transaction, or
 * when each try meets another commit.
 */
export async function commitAsRead<T>(
  client: NftClient,
  read: () => Promise<AsRead<T>>,
  what = 'clean up',
): Promise<T> {
  let sent: AsRead<T> | undefined
  for (let tries = 1; tries <= TRIES; tries++) {
    const generation = client.generation()
    const found = await read()
    if (found.transaction.length === 0) return (sent ?? found).value
    const result = await client.commit(found.transaction, { generation })
    if (result.outcome === 'committed') return found.value
    if (result.outcome === 'refused') throw commitError(what, result)
    if (result.outcome === 'unknown') sent = found
  }
  throw givenUp(what, TRIES)
}

/** Makes the error of a commit that did not happen, or of which that is unknown. It begins with `what`. */
export function commitError(
  what: string,
  { outcome, failures: [first] }: Pick<CommitResult, 'outcome'> & { readonly failures: readonly Failure[] },
): Error {
  const why = outcome === 'unknown' ? 'the outcome of the commit is unknown' : `the commit is ${outcome}`
  return new Error(`${what}: ${first?.error.message ?? why}`, { cause: first?.error })
}

interface Failure {
  readonly error: Error
}

/** Makes the error of a cleanup that read and committed so often, each time in vain. */
export function givenUp(what: string, tries: number): Error {
  const why = "other programs committed in between, or the kernel's answer was lost"
  return new Error(`${what}: gave up after ${tries} tries: ${why}`)
}

/** Deletes those of the tables that are ours. Gives their names with their families. Throws as commitAsRead does. */
export async function deleteTables(
  client: NftClient,
  tables: readonly TableName[],
  isOurs: (table: Table) => boolean = () => true,
  what = 'delete tables',
): Promise<readonly string[]> {
  const read = async (): Promise<AsRead<readonly string[]>> => {
    const ours = (await client.list(tables)).ruleset.tables.filter(isOurs)
    return { value: ours.map(nameOfTable), transaction: ours.map(deleteTable) }
  }
  return await commitAsRead(client, read, what)
}

/**
 * Implements `retire` for a mode whose objects are its own tables of this name: deletes them at once. The flows that they
 * translated continue as long as another mode has nat chains, and relayed ones as long as the process that relays them.
 */
export async function retireTables(
  context: ClientContext,
  signal: AbortSignal,
  { name, isOurs }: { readonly name: string; readonly isOurs: (table: Table) => boolean },
): Promise<'removed' | 'nothing' | { readonly kept: string }> {
  return await withNftClient(context, async client => {
    const isThere = (await tablesNamed(client, name)).some(isOurs)
    if (!isThere) return 'nothing'
    if (signal.aborted) return { kept: `tables ${name} of another proxy mode` }
    await deleteTables(client, bothNamed(name), isOurs)
    return 'removed'
  })
}

/** The names of the tables `ip` and `ip6` of a mode. */
export function bothNamed(name: string): readonly TableName[] {
  return NFT_FAMILIES.map(family => ({ family, name }))
}

export function deleteTable({ family, name }: Pick<Table, 'family' | 'name'>): Operation {
  return { verb: 'delete-table', family, table: name }
}

export function nameOfTable({ family, name }: Table): string {
  return `${family} ${name}`
}
