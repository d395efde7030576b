import type { Failure, FailureKind } from './failure.ts'
import { isOlder } from './object-index.ts'

export interface ReflectorState {
  readonly next: 'list' | 'watch'
  /** The newest delivered version; empty before the first list. Nothing older is requested or accepted. */
  readonly position: string
  /** The next list must be read from the store itself, not from what a server remembers. */
  readonly consistent: boolean
  /** The next list is not to be streamed. */
  readonly plain: boolean
  readonly reason: string
  /** A list lacked most of the held objects: the next one is believed, whatever it has. */
  readonly doubted: boolean
  /** The time (monotonic milliseconds) from which lists are older than what is held. */
  readonly backwardsSinceMs: number | undefined
  /** The next list is of another history: its versions cannot be compared with those of held objects. */
  readonly anew: boolean
  /** Streams in a row that could not be read. */
  readonly broken: number
  /** The server was away and may be another one since: its revision is read before the next watch. */
  readonly wasAway: boolean
  /** Lists since a watch has last brought anything. */
  readonly fruitless: number
}

export const START: ReflectorState = {
  next: 'list',
  position: '',
  consistent: false,
  plain: false,
  reason: 'start',
  doubted: false,
  backwardsSinceMs: undefined,
  anew: false,
  broken: 0,
  wasAway: false,
  fruitless: 0,
}

export type Outcome =
  | { readonly kind: 'landed' }
  | { readonly kind: 'failed'; readonly during: Attempted; readonly failure: Failure }
  /** The stream of a watch ended that had begun well, or its connection was lost. */
  | { readonly kind: 'ended'; readonly livedMs: number; readonly progress: boolean }
  /** A streaming list broke off before its end. */
  | { readonly kind: 'cut'; readonly text: string }
  /** A list is older than what is held. */
  | { readonly kind: 'backwards' }
  /** A list lacks most of what is held. */
  | { readonly kind: 'vanished' }
  /** A streaming list continues without an end. */
  | { readonly kind: 'late' }
  /** The server does not know the field selector, and is asked without it from now on. */
  | { readonly kind: 'unselected' }
  /** Events are missing that the server should have sent. */
  | { readonly kind: 'lost-events' }
  /** Refused objects fit now: see ObjectCap. */
  | { readonly kind: 'room' }

export type Attempted = 'list' | 'streaming list' | 'watch'

export interface Decision {
  readonly state: ReflectorState
  readonly wait:
    | { readonly kind: 'none' }
    /** Waits for the next back-off delay, and at least this long. */
    | { readonly kind: 'backoff'; readonly atLeastMs: number }
    /** Waits this long and up to twice as long, whatever failed before. */
    | { readonly kind: 'pause'; readonly ms: number }
  readonly trouble: Trouble | undefined
}

export interface Trouble {
  /** The resources that the problem concerns: all of them, one, or one that the others do without. */
  readonly scope: 'server' | 'resource' | 'absent' | 'denied'
  /** One line, without the resource. */
  readonly text: string
}

/** A watch that lives so long is well even when nothing happens. One that ends sooner without bringing anything has failed. */
export const SHORT_WATCH_MS = 1_000
/** A store that is still behind after this time was restored from a backup: then it is right. */
const BACKWARDS_MS = 10_000
const BROKEN_MAX = 2
/** A watch that lived so long was worth its list, although nothing may have happened. */
const FRUITFUL_MS = 10_000

const AT_ONCE = { kind: 'none' } as const
const BACK_OFF = { kind: 'backoff', atLeastMs: 0 } as const

export function afterList(state: ReflectorState, resourceVersion: string): ReflectorState {
  return { ...START, next: 'watch', position: resourceVersion, fruitless: state.fruitless + 1 }
}

export function isBackwards(state: ReflectorState, listVersion: string, nowMs: number): boolean {
  return isOlder(listVersion, state.position) && !state.anew && !mayGoBack(state, nowMs)
}

/** Consistent lists have been older than the held objects for long enough: time went back. */
function mayGoBack({ consistent, backwardsSinceMs }: ReflectorState, nowMs: number): boolean {
  return consistent && backwardsSinceMs !== undefined && nowMs - backwardsSinceMs >= BACKWARDS_MS
}

const OUTAGES: readonly FailureKind[] = [
  'unreachable',
  'connection',
  'unavailable',
  'unauthorized',
  'forbidden',
]

/** Servers that are away refuse connections, or leave answering to a proxy; those that have just started deny everything. */
export function isOutage(outcome: Outcome): boolean {
  if (outcome.kind !== 'failed' || outcome.failure.retryAfterMs > 0) return false
  return OUTAGES.includes(outcome.failure.kind)
}

/** Chooses the next state and wait after an attempt. */
export function decide(state: ReflectorState, outcome: Outcome, nowMs: number): Decision {
  switch (outcome.kind) {
    case 'landed':
      return atOnce(state)
    case 'failed':
      // While the API server cannot be reached, a relay may have become well again: its next list is judged anew.
      return afterFailure(isOutage(outcome) ? { ...state, doubted: false } : state, outcome)
    case 'ended': {
      const short = outcome.livedMs < SHORT_WATCH_MS && !outcome.progress
      const trouble: Trouble = { scope: 'server', text: 'watches end as soon as they begin' }
      if (short) return afterLostWatch(state, trouble)
      return atOnce({ ...state, broken: 0, fruitless: outcome.livedMs < FRUITFUL_MS ? state.fruitless : 0 })
    }
    case 'cut':
      return later({ ...state, plain: true }, { scope: 'server', text: outcome.text })
    case 'backwards': {
      const text = `the server's state is older than the known state (${state.position}); keeping the known state`
      const next = listing(state, {
        consistent: true,
        reason: 'an older list',
        backwardsSinceMs: state.backwardsSinceMs ?? nowMs,
      })
      if (!state.consistent) return atOnce(next)
      const wait = { kind: 'pause', ms: BACKWARDS_MS } as const
      return { state: next, wait, trouble: { scope: 'resource', text } }
    }
    case 'vanished':
      return atOnce(
        listing(state, { consistent: true, doubted: true, reason: 'most objects were missing in a list' }),
      )
    case 'late': {
      const text = 'the streaming list did not end; listing without streaming'
      return { state: { ...state, plain: true }, wait: AT_ONCE, trouble: { scope: 'resource', text } }
    }
    case 'unselected':
      return atOnce(listing(state, state.next === 'watch' ? { reason: 'a selector that is not known' } : {}))
    case 'lost-events':
      return atOnce(listing(state, { consistent: true, reason: 'events were lost' }))
    case 'room':
      return atOnce(listing(state, { reason: 'room for refused objects' }))
  }
}

function afterFailure(
  state: ReflectorState,
  { during, failure }: Extract<Outcome, { readonly kind: 'failed' }>,
): Decision {
  const watching = during === 'watch'
  switch (failure.kind) {
    case 'expired':
    case 'too-large':
      return afterVersionError(state, watching, failure)
    case 'another-history':
      return afterAnotherHistory(state, failure)
    case 'invalid':
      if (during === 'streaming list') return atOnce({ ...state, plain: true })
      return later(
        listing(state, { consistent: true, reason: 'a refused request' }),
        ofResource(failure),
        failure,
      )
    case 'forbidden':
    case 'absent':
      return withoutStream(state, during, failure, ofResource(failure))
    case 'broken':
      return afterBroken(state, during, failure)
    case 'fault':
      return later(listing(state, { reason: 'a fault' }), ofResource(failure), failure)
    case 'connection':
      if (watching) return afterLostWatch(state, ofServer(failure), failure)
      return withoutStream(state, during, failure, ofServer(failure))
    case 'throttled':
      return later(state, ofServer(failure), failure)
    case 'unreachable':
      return later({ ...state, wasAway: true }, ofServer(failure), failure)
    case 'internal':
    case 'unauthorized':
    case 'unavailable':
    case 'unexpected':
      return withoutStream(state, during, failure, ofServer(failure))
  }
}

/**
 * Plain lists replace streaming lists that fail, as in client-go: some servers and proxies answer nothing else. A failed
 * watch leads to a list each time, so that changes are seen meanwhile.
 */
function withoutStream(
  state: ReflectorState,
  during: Attempted,
  failure: Failure,
  trouble: Trouble,
): Decision {
  if (during === 'watch') {
    const text = `cannot watch: ${trouble.text}; listing instead`
    return later(listing(state, { reason: 'a failed watch' }), { ...trouble, text }, failure)
  }
  const next = { ...state, plain: true }
  if (during === 'list' || failure.retryAfterMs > 0) return later(next, trouble, failure)
  // A server that goes down ends the streams of all nodes at once.
  return { state: next, wait: failure.kind === 'connection' ? BACK_OFF : AT_ONCE, trouble: undefined }
}

/** Connections end every day (GOAWAY), and a watch resumes at no cost: only the second one in a row leads to a list. */
function afterLostWatch(state: ReflectorState, trouble: Trouble, failure?: Failure): Decision {
  const broken = state.broken + 1
  const isOver = broken >= BROKEN_MAX
  const next = isOver ? listing(state, { plain: true, reason: 'a failed watch' }) : { ...state, broken }
  return later(next, trouble, failure)
}

/** A list at the known version is served from memory and is as good. Only when that fails, the store is asked. */
function afterVersionError(state: ReflectorState, watching: boolean, failure: Failure): Decision {
  const again = watching ? state.fruitless > 1 : state.consistent
  const consistent = !watching || failure.kind === 'too-large' || state.consistent
  const next = listing(state, { consistent, reason: failure.kind })
  return again ? later(next, ofResource(failure), failure) : atOnce(next)
}

/** Nothing that is held is given up before the whole list of the other history is there. */
function afterAnotherHistory(state: ReflectorState, failure: Failure): Decision {
  const next = listing(state, { position: '', anew: true, reason: failure.kind })
  return state.fruitless > 1 ? later(next, ofResource(failure), failure) : atOnce(next)
}

function afterBroken(state: ReflectorState, during: Attempted, failure: Failure): Decision {
  const broken = state.broken + 1
  const plain = state.plain || during === 'streaming list'
  const next = { ...state, broken, plain }
  const isPoisoned = during === 'watch' && broken >= BROKEN_MAX
  return later(
    isPoisoned ? listing(next, { reason: 'unreadable events' }) : next,
    ofResource(failure),
    failure,
  )
}

function listing(state: ReflectorState, change: Partial<ReflectorState>): ReflectorState {
  return { ...state, next: 'list', ...change }
}

function atOnce(state: ReflectorState): Decision {
  return { state, wait: AT_ONCE, trouble: undefined }
}

function later(state: ReflectorState, trouble: Trouble, failure?: Failure): Decision {
  const wait = failure === undefined ? BACK_OFF : { ...BACK_OFF, atLeastMs: failure.retryAfterMs }
  return { state, wait, trouble }
}

function ofResource({ text }: Failure): Trouble {
  return { scope: 'resource', text }
}

function ofServer({ text }: Failure): Trouble {
  return { scope: 'server', text }
}

/** The minimum version of a list: any at first, the known one later; undefined reads the store. */
export function listVersion({ consistent, position }: ReflectorState): string | undefined {
  if (consistent) return undefined
  return position === '' ? '0' : position
}
