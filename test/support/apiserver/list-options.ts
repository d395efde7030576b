import { badRequest, invalidOption } from './status.ts'

type VersionMatch = 'Exact' | 'NotOlderThan'

/** The query of a list or watch, checked as the server checks it. */
export interface ListOptions {
  readonly watch: boolean
  readonly labelSelector: string
  readonly fieldSelector: string
  /** Empty for the newest state. */
  readonly resourceVersion: string
  readonly match: VersionMatch | undefined
  /** 0 for none. */
  readonly limit: number
  readonly continue: string
  readonly allowBookmarks: boolean
  readonly sendInitialEvents: boolean | undefined
  readonly timeoutSeconds: number | undefined
}

/** Throws ApiFailure 400 and 422. */
export function listOptionsOf(query: URLSearchParams, watchListServed: boolean): ListOptions {
  const options: ListOptions = {
    watch: flagOf(query, 'watch') ?? false,
    labelSelector: query.get('labelSelector') ?? '',
    fieldSelector: query.get('fieldSelector') ?? '',
    resourceVersion: versionOf(query.get('resourceVersion') ?? ''),
    match: matchOf(query.get('resourceVersionMatch') ?? ''),
    limit: numberOf(query, 'limit') ?? 0,
    continue: query.get('continue') ?? '',
    allowBookmarks: flagOf(query, 'allowWatchBookmarks') ?? false,
    sendInitialEvents: flagOf(query, 'sendInitialEvents'),
    timeoutSeconds: numberOf(query, 'timeoutSeconds'),
  }
  if (options.watch) checkWatch(options, watchListServed)
  else checkList(options)
  return options
}

function flagOf(query: URLSearchParams, name: string): boolean | undefined {
  const text = query.get(name)
  return text === null ? undefined : text === 'true' || text === '1'
}

function numberOf(query: URLSearchParams, name: string): number | undefined {
  const text = query.get(name)
  if (text === null || text === '') return undefined
  if (!/^\d+$/.test(text)) throw badRequest(`${name}: not a number: "${text}"`)
  return Number(text)
}

function versionOf(text: string): string {
  if (!/^(0|[1-9]\d*)?$/.test(text)) throw invalidOption('resourceVersion', `not a version: "${text}"`)
  return text
}

function matchOf(text: string): VersionMatch | undefined {
  if (text === '') return undefined
  if (text !== 'Exact' && text !== 'NotOlderThan')
    throw invalidOption('resourceVersionMatch', `supported values: Exact, NotOlderThan; not "${text}"`)
  return text
}

function checkList({ match, resourceVersion, continue: token, sendInitialEvents }: ListOptions): void {
  if (sendInitialEvents !== undefined) throw invalidOption('sendInitialEvents', 'only for watch')
  if (match === undefined) return
  if (token !== '') throw invalidOption('resourceVersionMatch', 'not together with continue')
  if (resourceVersion === '')
    throw invalidOption('resourceVersionMatch', 'only together with resourceVersion')
  if (match === 'Exact' && resourceVersion === '0')
    throw invalidOption('resourceVersionMatch', 'Exact is not for resourceVersion 0')
}

function checkWatch({ match, sendInitialEvents }: ListOptions, watchListServed: boolean): void {
  if (sendInitialEvents === undefined) {
    if (match !== undefined)
      throw invalidOption('resourceVersionMatch', 'for watch only together with sendInitialEvents')
    return
  }
  if (!watchListServed) throw invalidOption('sendInitialEvents', 'the feature gate WatchList is not enabled')
  if (match !== 'NotOlderThan')
    throw invalidOption('resourceVersionMatch', 'sendInitialEvents needs NotOlderThan')
}
