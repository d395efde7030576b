import type { Failure } from './failure.ts'
import { isOlder } from './resource-version.ts'

/** Where a reflector stands: what it does next, and what it has to bear in mind for that. */
export interface Course {
  readonly next: 'list' | 'watch'
  /** The newest version that was told; empty before the first list. Nothing older is asked for or taken. */
  readonly position: string
  /** The next list must be read from the store itself, not from what a server remembers. */
  readonly consistent: boolean
  /** The next list is not to be streamed. */
  readonly plain: boolean
  /** Why there will be a list, or was one. */
  readonly reason: string
  /** A list lacked most of what is held: the next one counts, whatever it says. */
  readonly doubted: boolean
  /** Since when (monotonic milliseconds) lists are older than what is held. */
  readonly backwardsSinceMs: number | undefined
  /** Streams in a row that could not be read. */
  readonly broken: number
  /** Since when watches end with internal errors. */
  readonly internalSinceMs: number | undefined
  /** Lists since a watch has last brought anything. */
  readonly fruitless: number
}

export const START: Course = {
  next: 'list',
  position: '',
  consistent: false,
  plain: false,
  reason: 'start',
  doubted: false,
  backwardsSinceMs: undefined,
  broken: 0,
  internalSinceMs: undefined,
  fruitless: 0,
}

/** How an attempt at a list or a watch ended. */
export type Outcome =
  /** A list was taken; see afterList. */
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
  /** A streaming list goes on without an end. */
  | { readonly kind: 'late' }
  /** Events are missing that the server should have sent. */
  | { readonly kind: 'lost-events' }
  /** Objects were left out for want of memory, and there is room for them now. */
  | { readonly kind: 'room' }

export type Attempted = 'list' | 'streaming list' | 'watch'

export interface Decision {
  readonly course: Course
  readonly wait:
    | { readonly kind: 'none' }
    /** As long as the next back-off delay, and at least so long. */
    | { readonly kind: 'backoff'; readonly atLeastMs: number }
  readonly trouble: Trouble | undefined
}

export interface Trouble {
  /** Whether every resource suffers alike; what is `absent` or `denied` is of a resource that the rest does without. */
  readonly scope: 'server' | 'resource' | 'absent' | 'denied'
  /** One line, without the resource. */
  readonly text: string
}

/** A watch that ends sooner without bringing anything counts as a failure. */
const SHORT_WATCH_MS = 1_000
const INTERNAL_MS_MAX = 60_000
/** A store that stays behind for so long was restored from a backup: then it is right. */
const BACKWARDS_MS_MAX = 300_000
const BROKEN_MAX = 2
/** A watch that lived so long was worth its list, although nothing may have happened. */
const FRUITFUL_MS = 10_000

const AT_ONCE = { kind: 'none' } as const
const BACK_OFF = { kind: 'backoff', atLeastMs: 0 } as const

/** A list was taken. */
export function afterList(course: Course, resourceVersion: string): Course {
  return { ...START, next: 'watch', position: resourceVersion, fruitless: course.fruitless + 1 }
}

/** A watch has brought something. */
export function afterProgress(course: Course, position: string): Course {
  return { ...course, position, broken: 0, internalSinceMs: undefined, fruitless: 0 }
}

export function isBackwards(course: Course, listVersion: string, nowMs: number): boolean {
  return isOlder(listVersion, course.position) && !mayGoBack(course, nowMs)
}

/** Consistent lists have said for long enough that time went back. */
export function mayGoBack({ consistent, backwardsSinceMs }: Course, nowMs: number): boolean {
  return consistent && backwardsSinceMs !== undefined && nowMs - backwardsSinceMs >= BACKWARDS_MS_MAX
}

/** Servers that are away refuse connections, or leave answering to a proxy; those that have just started deny everything. */
export function isOutage(outcome: Outcome): boolean {
  if (outcome.kind !== 'failed' || outcome.failure.retryAfterMs > 0) return false
  return ['connection', 'unavailable', 'unauthorized', 'forbidden'].includes(outcome.failure.kind)
}

/** What to do after an attempt that was not, or is no longer, what was hoped for. */
export function decide(course: Course, outcome: Outcome, nowMs: number): Decision {
  switch (outcome.kind) {
    case 'landed':
      return atOnce(course)
    case 'failed':
      return afterFailure(course, outcome, nowMs)
    case 'ended': {
      const short = outcome.livedMs < SHORT_WATCH_MS && !outcome.progress
      const trouble: Trouble = { scope: 'server', text: 'watches end as soon as they begin' }
      if (short) return later(course, trouble)
      return atOnce(outcome.livedMs < FRUITFUL_MS ? course : { ...course, fruitless: 0 })
    }
    case 'cut':
      return later({ ...course, plain: true }, { scope: 'server', text: outcome.text })
    case 'backwards': {
      const text = `the server's state is older than what is known (${course.position}), which stays`
      const next = listing(course, {
        consistent: true,
        reason: 'an older list',
        backwardsSinceMs: course.backwardsSinceMs ?? nowMs,
      })
      return course.consistent ? later(next, { scope: 'resource', text }) : atOnce(next)
    }
    case 'vanished':
      return atOnce(
        listing(course, { consistent: true, doubted: true, reason: 'most objects were missing in a list' }),
      )
    case 'late': {
      const text = 'the end of a streaming list did not come; listing without streaming'
      return { course: { ...course, plain: true }, wait: AT_ONCE, trouble: { scope: 'resource', text } }
    }
    case 'lost-events':
      return atOnce(listing(course, { consistent: true, reason: 'events were lost' }))
    case 'room':
      return atOnce(listing(course, { reason: 'room for objects left out' }))
  }
}

function afterFailure(
  course: Course,
  { during, failure }: Extract<Outcome, { readonly kind: 'failed' }>,
  nowMs: number,
): Decision {
  const watching = during === 'watch'
  switch (failure.kind) {
    case 'expired':
    case 'too-large':
      return afterVersionError(course, watching, failure)
    case 'invalid':
      if (during === 'streaming list') return atOnce({ ...course, plain: true })
      return later(
        listing(course, { consistent: true, reason: 'a refused request' }),
        ofResource(failure),
        failure,
      )
    case 'forbidden':
    case 'absent':
      return later(course, ofResource(failure), failure)
    case 'broken':
      return afterBroken(course, during, failure)
    case 'fault':
      return later(listing(course, { reason: 'a fault' }), ofResource(failure), failure)
    case 'internal':
      return watching ? afterInternal(course, failure, nowMs) : later(course, ofServer(failure), failure)
    case 'unauthorized':
    case 'throttled':
    case 'unavailable':
    case 'unexpected':
    case 'connection':
      return later(course, ofServer(failure), failure)
  }
}

/** A list from where we stand is served from memory and is as good; only when that fails the store is asked. */
function afterVersionError(course: Course, watching: boolean, failure: Failure): Decision {
  const again = watching ? course.fruitless > 1 : course.consistent
  const consistent = !watching || failure.kind === 'too-large' || course.consistent
  const next = listing(course, { consistent, reason: failure.kind })
  return again ? later(next, ofResource(failure), failure) : atOnce(next)
}

function afterBroken(course: Course, during: Attempted, failure: Failure): Decision {
  const broken = course.broken + 1
  const plain = course.plain || during === 'streaming list'
  const next = { ...course, broken, plain }
  const isPoisoned = during === 'watch' && broken >= BROKEN_MAX
  return later(
    isPoisoned ? listing(next, { reason: 'unreadable events' }) : next,
    ofResource(failure),
    failure,
  )
}

function afterInternal(course: Course, failure: Failure, nowMs: number): Decision {
  const internalSinceMs = course.internalSinceMs ?? nowMs
  const isOver = nowMs - internalSinceMs >= INTERNAL_MS_MAX
  const next = isOver
    ? listing(course, { reason: 'internal errors', internalSinceMs: undefined })
    : { ...course, internalSinceMs }
  return later(next, ofServer(failure), failure)
}

function listing(course: Course, change: Partial<Course>): Course {
  return { ...course, next: 'list', ...change }
}

function atOnce(course: Course): Decision {
  return { course, wait: AT_ONCE, trouble: undefined }
}

function later(course: Course, trouble: Trouble, failure?: Failure): Decision {
  const wait = failure === undefined ? BACK_OFF : { ...BACK_OFF, atLeastMs: failure.retryAfterMs }
  return { course, wait, trouble }
}

function ofResource({ text }: Failure): Trouble {
  return { scope: 'resource', text }
}

function ofServer({ text }: Failure): Trouble {
  return { scope: 'server', text }
}
