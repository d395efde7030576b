import { fieldOf, listAt, numberAt, textAt } from '../../base/plain-data.ts'
import type { RefusedPackets } from '../../daemon/refused-packets.ts'
import type { RefusedCount } from '../../modes/refused.ts'
import { type DaemonState, failedOverIn, type TableUser } from '../live/top-sampler.ts'
import type { Unanswered } from '../live/unanswered-rows.ts'
import type { RuleFindings } from '../programmed.ts'

/** All that the status of a node is judged by. Undefined is what is not known. */
export interface StatusFacts {
  readonly wallMs: number
  /** The version of the program that judges. */
  readonly version: string
  readonly daemon: DaemonFacts | AbsentDaemon
  /** What `kprobe doctor` finds that concerns traffic, and the modes whose rules are in the kernel. */
  readonly rules: RuleFindings | undefined
  readonly conntrack: ConntrackUse | undefined
  /** Packets that the rules refused since they were written. */
  readonly refused: readonly RefusedCount[] | undefined
  readonly unanswered: Unanswered | undefined
  readonly unread: readonly { readonly part: string; readonly reason: string }[]
}

export interface ConntrackUse {
  readonly entries: number
  readonly entriesMax: number | undefined
  /** The Services with most entries; empty while the table has room. */
  readonly largest: readonly TableUser[]
}

export interface AbsentDaemon {
  /** `silent`: a daemon runs, and its admin socket does not answer. */
  readonly kind: 'absent' | 'silent'
  /** Since when, or why. */
  readonly text: string
}

/** The pages of the admin socket, which a daemon reads without the socket. An older daemon has no page /health. */
export interface DaemonPages {
  readonly config: unknown
  readonly status: unknown
  readonly health: unknown
}

export interface RefusedField {
  readonly service: string
  readonly object: string
  readonly field: string
  readonly value: string
  readonly reason: string
}

export interface RecentRepair {
  readonly at: string
  readonly objects: number
  readonly process: string
}

/** What a daemon reports. Empty texts and undefined are what an older daemon does not report. */
export interface DaemonFacts {
  readonly kind: 'answers'
  readonly version: string
  readonly mode: string
  readonly modeFrom: string
  readonly startedAt: string
  readonly source: {
    readonly kind: string
    readonly missing: readonly string[]
    readonly trouble: string
    /** A saved state is served. */
    readonly isStale: boolean
    readonly silentMs: number | undefined
  }
  readonly services: number | undefined
  readonly synced: number | undefined
  readonly error: string
  readonly quarantined: number
  readonly rejected: readonly { readonly service: string; readonly error: string }[]
  /** Why /healthz answers 503. */
  readonly notReady: string
  readonly families: readonly string[]
  readonly refused:
    | { readonly services: number; readonly objects: number; readonly first: readonly RefusedField[] }
    | undefined
  readonly withoutEndpoint: { readonly services: number; readonly first: readonly string[] } | undefined
  readonly failedOver: DaemonState['failedOver']
  readonly repairs: readonly RecentRepair[] | undefined
  /** The packets that the rules had refused about one to two minutes ago; an age of 0 where that is not known. */
  readonly refusedBefore: NonNullable<RefusedPackets['before']>
  readonly tokenEndMs: number | undefined
  readonly certificateEndMs: number | undefined
}

/** Reads the pages of a daemon, and skips fields of another shape. */
export function daemonFacts({ config, status, health }: DaemonPages): DaemonFacts {
  const readiness = fieldOf(health, 'readiness')
  const credentials = fieldOf(health, 'credentials')
  return {
    kind: 'answers',
    version: textAt(config, 'version'),
    mode: textAt(status, 'mode'),
    modeFrom: textAt(health, 'modeFrom'),
    startedAt: textAt(status, 'startedAt'),
    source: sourceFacts(fieldOf(status, 'source'), health),
    services: numberAt(status, 'services'),
    synced: numberAt(status, 'synced'),
    error: textAt(status, 'error'),
    quarantined: numberAt(status, 'quarantined') ?? 0,
    rejected: listAt(health, 'rejected').map(each => ({
      service: textAt(each, 'service'),
      error: textAt(each, 'error'),
    })),
    notReady: textAt(readiness, 'reason'),
    families: listAt(health, 'families').map(String),
    refused: refusedFacts(fieldOf(health, 'refused')),
    withoutEndpoint: namedFacts(fieldOf(health, 'withoutEndpoint')),
    failedOver: failedOverIn(status),
    repairs: repairFacts(fieldOf(status, 'repairs')),
    refusedBefore: refusedBefore(fieldOf(health, 'refusedPackets')),
    tokenEndMs: numberAt(credentials, 'tokenMs'),
    certificateEndMs: numberAt(credentials, 'certificateMs'),
  }
}

function sourceFacts(source: unknown, health: unknown): DaemonFacts['source'] {
  return {
    kind: textAt(health, 'sourceKind'),
    missing: listAt(source, 'missing').map(String),
    trouble: textAt(source, 'trouble'),
    isStale: numberAt(fieldOf(health, 'readiness'), 'staleSeconds') !== undefined,
    silentMs: numberAt(source, 'silentMs'),
  }
}

function refusedFacts(refused: unknown): DaemonFacts['refused'] {
  if (refused === undefined) return undefined
  const first = listAt(refused, 'first').map(each => ({
    service: textAt(each, 'service'),
    object: textAt(each, 'object'),
    field: textAt(each, 'field'),
    value: textAt(each, 'value'),
    reason: textAt(each, 'reason'),
  }))
  return { services: numberAt(refused, 'services') ?? 0, objects: numberAt(refused, 'objects') ?? 0, first }
}

function refusedBefore(before: unknown): DaemonFacts['refusedBefore'] {
  const [ageMs = 0, rejected = 0, dropped = 0] = ['ageMs', 'rejected', 'dropped'].map(name =>
    numberAt(before, name),
  )
  return { ageMs, rejected, dropped }
}

function namedFacts(named: unknown): DaemonFacts['withoutEndpoint'] {
  if (named === undefined) return undefined
  return { services: numberAt(named, 'services') ?? 0, first: listAt(named, 'first').map(String) }
}

function repairFacts(repairs: unknown): DaemonFacts['repairs'] {
  if (!Array.isArray(fieldOf(repairs, 'recent'))) return undefined
  return listAt(repairs, 'recent').map(each => ({
    at: textAt(each, 'at'),
    process: textAt(each, 'process'),
    objects: numberAt(each, 'objects') ?? 0,
  }))
}
