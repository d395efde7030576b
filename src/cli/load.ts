import type { Clock } from '../base/clock.ts'
import { finishInSlices, slicingOf } from '../base/steps.ts'
import { oneLine } from '../base/text.ts'
import type { Config } from '../config/config.ts'
import { resolveOptions } from '../config/resolve-options.ts'
import { Cluster } from '../daemon/cluster.ts'
import { openClient, openFileSource, watchLocalIps } from '../daemon/open.ts'
import type { FrontendTable } from '../model/frontend.ts'
import type { Refusal } from '../model/refusal.ts'
import { resolve } from '../model/resolve.ts'
import { applyEvents, EMPTY_SNAPSHOT, type Snapshot } from '../model/snapshot.ts'
import type { LocalAddresses } from '../source/local-addresses.ts'
import type { Source } from '../source/source.ts'
import type { Io } from './io.ts'

export interface Loaded {
  readonly snapshot: Snapshot
  readonly table: FrontendTable
}

/** Reads the source once, whole, and resolves it, for commands that end. Throws when a part of it cannot be read. */
export async function loadOnce(config: Config, clock: Clock, io: Io): Promise<Loaded> {
  const snapshot = await readSource(config, clock, io)
  const table = await finishInSlices(resolve(resolveOptions(config), undefined, snapshot), slicingOf(clock))
  return { snapshot, table }
}

async function readSource(config: Config, clock: Clock, io: Io): Promise<Snapshot> {
  if (config.source.kind === 'file')
    return await readWhole(openFileSource(config, clock), { config, clock, io })
  const warn = (text: string) => io.err(`${oneLine(text)}\n`)
  const client = await openClient(config, { clock, env: process.env, warn })
  const cluster = new Cluster({ client, clock, random: Math.random, requested: () => undefined })
  try {
    return await readWhole(cluster.source(config), { config, clock, io })
  } finally {
    await cluster.close()
  }
}

interface Reading {
  readonly config: Config
  readonly clock: Clock
  readonly io: Io
}

async function readWhole(source: Source, { config, clock, io }: Reading): Promise<Snapshot> {
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
      localIps = watchLocalIps(config, clock, {
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
          snapshot = applyEvents(snapshot, batch)
          return Promise.resolve()
        },
        synced: () => arrived('objects'),
        refusals: list => {
          for (const { place, refusal } of list) io.err(refusalText(refusal, place))
        },
        problem: ({ kind, place, text }) => {
          if (kind === 'failed' || kind === 'empty') fail(new Error(`${place}: ${text}`))
          else io.err(`${oneLine(`${place}: ${text}`)}\n`)
        },
      })
      started.catch(fail)
    })
  } finally {
    await localIps?.stop()
    await source.stop()
  }
  return snapshot
}

export function refusalText({ object, field, value, reason }: Refusal, place?: string): string {
  const where = place === undefined ? '' : `${place}: `
  return `${oneLine(`${where}refused: ${object} ${field} ${value}: ${reason}`)}\n`
}
