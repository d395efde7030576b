import type { ReflectorState } from './reflector-state.ts'

const WATCH_SECONDS_MIN = 300

/** How long a watch may last, seconds: spread, so that thousands of them do not end together. */
export function watchSeconds(random: () => number): number {
  return WATCH_SECONDS_MIN + Math.floor(WATCH_SECONDS_MIN * random())
}

/** The minimum version of a list: any at first, the known one later; undefined reads the store. */
export function listVersion({ consistent, position }: ReflectorState): string | undefined {
  if (consistent) return undefined
  return position === '' ? '0' : position
}

export function watchQuery(position: string, seconds: number): Readonly<Record<string, string>> {
  return {
    watch: '1',
    allowWatchBookmarks: 'true',
    resourceVersion: position,
    timeoutSeconds: String(seconds),
  }
}

/** A watch that begins with a list (KEP-3157), of now when no version is known. */
export function streamingQuery(position: string, seconds: number): Readonly<Record<string, string>> {
  return {
    ...watchQuery(position, seconds),
    sendInitialEvents: 'true',
    resourceVersionMatch: 'NotOlderThan',
  }
}
