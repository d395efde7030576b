import { type Cancel, type Clock, finishInSlices, slicingOf, systemClock } from '../base/clock.ts'
import { fieldOf, listAt, numberAt, textAt } from '../base/plain-data.ts'
import { oneLine } from '../base/text.ts'
import { type Io, writeWarnings } from '../cli/io.ts'
import type { Config } from '../config/config.ts'
import { dialedEndpoints } from '../daemon/api-reach.ts'
import { Cluster } from '../daemon/cluster.ts'
import { instanceOf } from '../daemon/instance-lock.ts'
import { holderSockets } from '../daemon/network-lock.ts'
import { NodeListeners } from '../daemon/node-listeners.ts'
import { openClient, openFileSource, openRoute, openSockDiag, watchLocalIps } from '../daemon/open.ts'
import { processRoom, servicesBytes } from '../daemon/process-room.ts'
import { readSnapshotJson } from '../daemon/saved/snapshot-json.ts'
import { ownSockets } from '../kernel/socket/listeners.ts'
import type { Refusal } from '../model/fields.ts'
import type { ApiEndpoint } from '../model/reserved.ts'
import { type Resolved, resolve } from '../model/resolve.ts'
import type { ServiceKey } from '../model/service.ts'
import { applyEvents, EMPTY_SNAPSHOT, type Snapshot } from '../model/snapshot.ts'
import { resolveOptions } from '../modes/resolve-options.ts'
import type { DialWatch } from '../source/kube/client/connections.ts'
import type { LocalAddresses } from '../source/local-addresses.ts'
import type { LocatedRefusal, Source } from '../source/source.ts'
import { type RefusedSince, refusalIdentity } from '../telemetry/refusal-log.ts'
import { askObjects } from './admin-client.ts'
import type { ModelRequest } from './model-request.ts'

interface Reading {
  readonly io: Io
  readonly progress: Progress
  /** Takes a warning, which is printed after the results. */
  readonly warn: (text: string) => void
  /** Objects that the source refuses; printed after the results, too. */
  readonly source: { refused: readonly LocatedRefusal[] }
}

export interface Loaded extends Resolved {
  /** EndpointSlices and Services that are refused as a whole, each with its Service. */
  readonly refusedObjects: readonly Refusal[]
  /** Gives the time since which the daemon refuses something; absent without a daemon. */
  readonly refusedSince?: (refusal: Refusal) => RefusedSince | undefined
  readonly quarantined?: ReadonlyMap<ServiceKey, string>
  /** Missing knowledge about the objects, in words. */
  readonly notKnown: readonly string[]
}

/** More refusals would push the results out of sight. */
const WARNINGS_MAX = 20

/**
 * Reads all objects once, from the daemon or from the source, and resolves them. For commands that end. `use` prints
 * the results. Reports progress on standard error until `use` has ended, and then prints the warnings: all of them if
 * `allWarnings` is set. Throws if some objects cannot be read.
 */
export async function withLoaded<R>(
  request: Pick<ModelRequest, 'config' | 'daemon' | 'notices'> & { readonly allWarnings?: boolean },
  io: Io,
  use: (loaded: Loaded, reading: Pick<Reading, 'progress' | 'warn'>) => R | Promise<R>,
): Promise<R> {
  for (const notice of request.notices) io.err(`${oneLine(notice)}\n`)
  const progress = new Progress(systemClock, io)
  const warnings: string[] = []
  const warn = (text: string) => void warnings.push(text)
  const reading: Reading = { io, progress, warn, source: { refused: [] } }
  try {
    return await use(await load(request, reading), reading)
  } finally {
    progress.end()
    const refused = reading.source.refused.map(({ location, refusal }) => refusalText(refusal, location))
    const max = request.allWarnings === true ? undefined : WARNINGS_MAX
    // What concerns the whole result comes first: the list of refusals may be cut.
    await writeWarnings([...warnings, ...refused], io, { max, rest: '`kprobe plan` lists all' })
  }
}

async function load(
  { config, daemon }: Pick<ModelRequest, 'config' | 'daemon'>,
  reading: Reading,
): Promise<Loaded> {
  const { progress, source } = reading
  const { snapshot, memoryBytes, refusedObjects, ...known } =
    daemon === undefined
      ? {
          notKnown: [],
          snapshot: await withListeners(await readSource(config, reading), config, reading),
          memoryBytes: servicesBytes(processRoom()),
          refusedObjects: source.refused.map(({ refusal }) => refusal),
        }
      : await askSnapshot(daemon, reading)
  progress.begin('computing what the kernel should hold')
  const options = resolveOptions(config, memoryBytes)
  const resolved = await finishInSlices(resolve(options, undefined, snapshot), slicingOf(systemClock))
  return {
    ...resolved,
    ...known,
    refusedObjects: refusedObjects.filter(({ service }) => service !== undefined),
  }
}

/** Adds the listeners of this node, as a starting daemon does. Sockets of the running daemon do not count. */
async function withListeners(
  snapshot: Snapshot,
  { serviceProxyName }: Config,
  reading: Reading,
): Promise<Snapshot> {
  const warn = (facts: { readonly err: Error }, text: string) => reading.warn(`${text}: ${facts.err.message}`)
  const sockets = { diag: openSockDiag, route: openRoute }
  const ofDaemon = await holderSockets(instanceOf(serviceProxyName).lock)
  const ours = () => new Set([...ownSockets(), ...ofDaemon])
  return new NodeListeners({ clock: systemClock, warn, ownSockets: ours, sockets }).completed(
    snapshot,
    'start',
  )
}

/** Reads the objects of the daemon, with the daemon's memory limit: Services that exceed it are refused here, too. */
async function askSnapshot(socket: string, { progress }: Reading): Promise<DaemonObjects> {
  progress.begin(`reading the objects of the daemon at ${socket}`)
  const answer = await askObjects(socket)
  const snapshot = await finishInSlices(readSnapshotJson(answer), slicingOf(systemClock))
  progress.read(snapshot.services.size + snapshot.sliceByKey.size)
  return {
    snapshot,
    memoryBytes: numberAt(answer, 'servicesBytes'),
    ...knownIn(answer),
  }
}

/** Reads the fields of the daemon's page /snapshot besides the objects. */
export function knownIn(page: unknown): Omit<Loaded, keyof Resolved> {
  const since = timesIn(page)
  return {
    refusedObjects: listAt(page, 'refusedObjects').flatMap(refusalIn),
    refusedSince: refusal => since.get(refusalIdentity(refusal)),
    quarantined: new Map(
      listAt(page, 'quarantined').map(entry => [textAt(entry, 'service'), textAt(entry, 'error')]),
    ),
    notKnown: notKnownIn(fieldOf(page, 'source')),
  }
}

/** Reads the times of refusals, and skips entries of another shape. */
function timesIn(page: unknown): ReadonlyMap<string, RefusedSince> {
  const times = new Map<string, RefusedSince>()
  for (const entry of listAt(page, 'refusedSince')) {
    const wallMs = numberAt(entry, 'wallMs')
    if (wallMs === undefined || !Number.isFinite(wallMs)) continue
    times.set(refusalIdentity(refusalOf(entry)), { wallMs, orEarlier: fieldOf(entry, 'orEarlier') === true })
  }
  return times
}

function refusalOf(entry: unknown) {
  const text = (field: string) => textAt(entry, field)
  return { object: text('object'), field: text('field'), value: text('value'), reason: text('reason') }
}

function notKnownIn(source: unknown): readonly string[] {
  const trouble = textAt(source, 'trouble')
  const why = trouble === '' ? '' : `: ${trouble}`
  if (fieldOf(source, 'stale') === true)
    return [`the current objects of the source: the daemon serves those of its last run${why}`]
  if (why === '') return []
  const silentMs = numberAt(source, 'silentMs')
  const time = silentMs === undefined ? '' : ` of the last ${Math.round(silentMs / 1000)} s`
  return [`changes${time}: the daemon cannot read its source${why}`]
}

interface DaemonObjects extends Pick<Loaded, 'refusedSince' | 'quarantined' | 'notKnown'> {
  readonly snapshot: Snapshot
  readonly memoryBytes: number | undefined
  readonly refusedObjects: readonly Refusal[]
}

/** Reads a refusal that the daemon has written; empty for anything else. */
function refusalIn(entry: unknown): readonly Refusal[] {
  const refusal = { ...refusalOf(entry), service: textAt(entry, 'service') }
  return refusal.object === '' || refusal.service === '' ? [] : [refusal]
}

async function readSource(config: Config, reading: Reading): Promise<Snapshot> {
  const { io, progress, warn } = reading
  const whole = { ...reading, config }
  if (config.source.kind === 'file') {
    const read = () => progress.read(1)
    return await readWhole(openFileSource(config, systemClock, { read }), whole)
  }
  const dialed: ApiEndpoint[] = []
  const dials: DialWatch = {
    reaching: (addresses, port) => dialed.push(...dialedEndpoints(addresses, port)),
  }
  const client = await openClient(config, {
    clock: systemClock,
    env: process.env,
    warn,
    dials,
    parts: io.parts,
  })
  const cluster = new Cluster({ client, clock: systemClock, random: Math.random, requested: () => undefined })
  try {
    const snapshot = await readWhole(cluster.source(config), whole)
    return applyEvents(snapshot, [{ kind: 'ApiEndpoints', value: dialed }])
  } finally {
    await cluster.close()
  }
}

interface WholeReading extends Reading {
  readonly config: Config
}

async function readWhole(
  source: Source,
  { config, io, progress, warn, source: found }: WholeReading,
): Promise<Snapshot> {
  let snapshot = EMPTY_SNAPSHOT
  let localIps: LocalAddresses | undefined
  try {
    await new Promise<void>((complete, fail) => {
      const interrupted = () => fail(new Error('interrupted'))
      io.signal.addEventListener('abort', interrupted, { once: true })
      if (io.signal.aborted) interrupted()
      const missing = new Set(['objects'])
      const arrived = (what: string) => {
        missing.delete(what)
        if (missing.size === 0) complete()
      }
      localIps = watchLocalIps(config, systemClock, {
        changed: value => {
          snapshot = applyEvents(snapshot, [{ kind: 'LocalIps', value }])
          arrived('addresses')
        },
        failed: fail,
        recovered: () => undefined,
      })
      if (localIps !== undefined) missing.add('addresses')
      const started = source.start({
        events: batch => {
          if (config.source.kind === 'kube') progress.read(batch.length)
          snapshot = applyEvents(snapshot, batch)
          return Promise.resolve()
        },
        synced: () => arrived('objects'),
        refusals: list => {
          found.refused = list
        },
        problem: ({ kind, location, text }) => {
          if (kind === 'failed' || kind === 'empty') fail(new Error(`${location}: ${text}`))
          else warn(`${location}: ${text}`)
        },
      })
      started.catch(fail)
    })
    if (snapshot.node === undefined) warnOfNode(config, source.status.otherNodes, warn)
  } finally {
    await localIps?.stop()
    await source.stop()
  }
  return snapshot
}

/** Files may omit all Nodes deliberately. */
function warnOfNode(
  { nodeName, source }: Config,
  others: readonly string[] | undefined,
  warn: (text: string) => void,
): void {
  if (source.kind === 'file' && (others ?? []).length === 0) return
  const which = others === undefined ? '' : `; there are ${others.join(', ')}`
  warn(`Node ${nodeName} not found${which}: set --hostname-override to the name of the Node of this machine`)
}

export function refusalText({ object, field, value, reason }: Refusal, location?: string): string {
  const where = location === undefined ? '' : `${location}: `
  const what = [object, field, value].filter(part => part !== '').join(' ')
  return `${where}refused: ${what}: ${reason}`
}

/** A cluster of fewer objects needs no report. */
const QUIET_BELOW = 1_000

/** Reports the progress of a command on standard error every 2 s, from 2 s on, if it reads many objects. */
export class Progress {
  readonly #clock: Clock
  readonly #err: Io['err']
  #timer: Cancel
  #objects = 0
  #doing = ''

  constructor(clock: Clock, { err }: Pick<Io, 'err'>) {
    this.#clock = clock
    this.#err = err
    this.#timer = this.#schedule()
  }

  read(objects: number): void {
    this.#objects += objects
  }

  /** Begins the step after reading. */
  begin(doing: string): void {
    this.#doing = doing
  }

  end(): void {
    this.#timer()
  }

  #schedule(): Cancel {
    return this.#clock.after(2_000, () => {
      if (this.#objects >= QUIET_BELOW) this.#err(`${this.#text}\n`)
      this.#timer = this.#schedule()
    })
  }

  get #text(): string {
    const objects = `${this.#objects.toLocaleString('en-US')} objects`
    return this.#doing === '' ? `reading the source: ${objects} so far` : `${this.#doing} (${objects})`
  }
}
