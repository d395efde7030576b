import { readlink } from 'node:fs/promises'
import type { Clock } from '../base/clock.ts'
import type { Log } from '../base/log.ts'
import { MODES } from '../modes/registry.ts'
import type { LockResult, TakeLock } from './network-lock.ts'

export type InstanceLock =
  | Extract<LockResult, { readonly kind: 'held' }>
  /** Another proxy has the lock: it has the same name, or its name gives the same chain names. */
  | { readonly kind: 'busy'; readonly holder: string; readonly of: 'name' | 'chains' }

/** Takes all locks of this proxy, or none. */
export async function lockInstance(
  { lock, objectsLock }: Pick<Instance, 'lock' | 'objectsLock'>,
  take: TakeLock,
  holder: string,
): Promise<InstanceLock> {
  const ofName = await take(lock, holder)
  if (ofName.kind === 'busy') return { ...ofName, of: 'name' }
  if (objectsLock === undefined) return ofName
  const ofChains = await take(objectsLock, holder).catch(async thrown => {
    await ofName.release()
    throw thrown
  })
  if (ofChains.kind === 'held')
    return {
      kind: 'held',
      // Port ids of the second sockets may have the other order: where the first lock has a rival, it alone decides.
      rival: async () => (await ofName.rival?.()) ?? (await ofChains.rival?.()),
      release: async () => {
        await ofChains.release()
        await ofName.release()
      },
    }
  await ofName.release()
  return { ...ofChains, of: 'chains' }
}

interface LockOptions {
  readonly log: Log
  readonly clock: Clock
  readonly takeLock: TakeLock
  readonly processId: number
  /** Aborting it ends the run. */
  readonly signal: AbortSignal
}

export interface InstanceWatch {
  /** Aborting it ends the run: by the signal of LockOptions, or because another proxy has this name. */
  readonly signal: AbortSignal
  readonly repaired: () => void
}

/** Runs as the only proxy of this name in the network namespace. Gives 1 if another one runs. */
export async function asOnlyInstance(
  name: string | undefined,
  options: LockOptions,
  run: (watch: InstanceWatch) => Promise<number>,
): Promise<number> {
  const { log, takeLock, processId, clock } = options
  const instance = instanceOf(name)
  const lock = await lockInstance(instance, takeLock, `pid ${processId}`).catch((err: unknown) =>
    log.fatal({ err }, 'cannot take the lock that keeps a second kprobe from this network namespace'),
  )
  if (lock === undefined) return 1
  if (lock.kind === 'busy') {
    log.error({ holder: holderText(lock.holder) }, busyText(name, lock.of, instance))
    return 1
  }
  const gone = new AbortController()
  const signal = AbortSignal.any([options.signal, gone.signal])
  const overwritten = new Overwritten(clock, async () => {
    const rival = await lock.rival?.()
    if (rival?.stays !== true || signal.aborted) return
    const facts = { holder: holderText(rival.holder), repairs: OVERWRITTEN_MAX }
    log.error(facts, busyText(name, 'name', instance))
    gone.abort('another kprobe overwrites every commit')
  })
  const repaired = () => {
    overwritten.repaired().catch(err => log.warn({ err }, 'cannot determine which process holds the lock'))
  }
  try {
    const code = await run({ signal, repaired })
    return gone.signal.aborted ? 1 : code
  } finally {
    await lock.release()
  }
}

/** Repairs in a row that prove another proxy; a single flush of a table does not. */
const OVERWRITTEN_MAX = 8

/** Counts repairs in a row: each less than a minute after the one before. */
class Overwritten {
  readonly #clock: Clock
  readonly #reached: () => Promise<void>
  #count = 0
  #lastMs = Number.NEGATIVE_INFINITY

  constructor(clock: Clock, reached: () => Promise<void>) {
    this.#clock = clock
    this.#reached = reached
  }

  async repaired(): Promise<void> {
    const nowMs = this.#clock.nowMs()
    this.#count = nowMs - this.#lastMs > 60_000 ? 1 : this.#count + 1
    this.#lastMs = nowMs
    if (this.#count < OVERWRITTEN_MAX) return
    this.#count = 0
    await this.#reached()
  }
}

function holderText(holder: string): string {
  return holder === '' ? 'unknown: no answer' : holder
}

const REMEDY = 'stop that one, or give this one another --service-proxy-name'

function busyText(name: string | undefined, of: 'name' | 'chains', { collision = '' }: Instance): string {
  const here = 'runs in this network namespace'
  if (of === 'chains') return `another kprobe ${here} whose ${collision}; ${REMEDY}`
  const which = name === undefined ? '' : ' with this --service-proxy-name'
  return `another kprobe${which} ${here}; two would overwrite each other's tables; ${REMEDY}`
}

/** The locks that make a proxy the only one of its name: docs/decisions/0021. */
interface Instance {
  /** Name of the lock (takeLock): one daemon for each proxy name, whatever the mode. */
  readonly lock: string
  /** A lock for objects whose names two proxies may share. */
  readonly objectsLock: string | undefined
  /** The reason why a second proxy with the same `objectsLock` is refused. */
  readonly collision: string | undefined
}

/**
 * Gives the locks of a proxy. `name` is the value of --service-proxy-name, undefined for the unnamed proxy. A DNS label
 * contains no dot and no slash, so that each name has a lock of its own.
 */
export function instanceOf(name: string | undefined): Instance {
  if (name === undefined) return { lock: LOCK_NAME, objectsLock: undefined, collision: undefined }
  const lock = MODES.find(mode => mode.lock !== undefined)?.lock
  return { lock: `${LOCK_NAME}/${name}`, objectsLock: lock?.of(name), collision: lock?.taken }
}

const LOCK_NAME = 'kprobe/kube-proxy'

/** Gives the network namespace of a process, by its folder in /proc; undefined if it is not readable. */
export async function networkNamespace(folder = '/proc/self'): Promise<string | undefined> {
  try {
    return await readlink(`${folder}/ns/net`)
  } catch {
    return undefined
  }
}
