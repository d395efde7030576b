import { ageText } from '../../base/duration.ts'
import { count } from '../../base/text.ts'
import type { Fact } from './status-document.ts'
import type { DaemonFacts, StatusFacts } from './status-facts.ts'

/** The facts of the screen. What an older daemon does not report is left out. */
export function factsOf(facts: StatusFacts): readonly Fact[] {
  const { daemon, unread } = facts
  return [
    daemonFact(facts),
    ...(daemon.kind === 'answers'
      ? [
          sourceFact(daemon),
          servicesFact(daemon),
          kernelFact(daemon),
          ...credentialsFact(daemon, facts.wallMs),
        ]
      : rulesFact(facts.rules)),
    ...conntrackFact(facts),
    ...packetsFact(facts),
    ...connectionsFact(facts),
    ...(unread.length === 0 ? [] : [notKnownFact(unread)]),
  ]
}

function fact(name: string, text: string, values: Fact['values']): Fact {
  return { name, text, values }
}

function notKnownFact(unread: StatusFacts['unread']): Fact {
  const text = unread.map(({ part, reason }) => `${part}: ${reason}`).join('; ')
  return fact('not known', text, { reasons: unread.length })
}

function rulesFact(rules: StatusFacts['rules']): readonly Fact[] {
  if (rules === undefined) return []
  const modes = rules.modes.join(' and ')
  return [fact('kernel', modes === '' ? 'no rules of kprobe' : `rules of ${modes} mode`, { modes })]
}

function daemonFact({ daemon, version, wallMs }: StatusFacts): Fact {
  if (daemon.kind !== 'answers')
    return fact('daemon', daemon.kind === 'absent' ? `none; ${daemon.text}` : daemon.text, {
      runs: daemon.kind === 'silent',
    })
  const { startedAt, mode, modeFrom } = daemon
  const why = modeFrom === '' ? '' : ` (${modeFrom})`
  const other = daemon.version === version ? '' : `; this command is ${version}`
  const seconds = startedAt === '' ? null : Math.max(0, Math.round((wallMs - Date.parse(startedAt)) / 1_000))
  const since = seconds === null ? '' : `, for ${ageText(seconds * 1_000)}`
  const text = `kprobe ${daemon.version}, ${mode === '' ? 'no' : mode} mode${why}${since}${other}`
  return fact('daemon', text, { runs: true, version: daemon.version, mode, modeFrom, startedAt, seconds })
}

function sourceFact({ source }: DaemonFacts): Fact {
  const { kind, trouble, missing, isStale, silentMs } = source
  const age = silentMs === undefined ? null : Math.round(silentMs / 1_000)
  const parts = [
    ...(kind === '' ? [] : [kind === 'kube' ? 'API server' : kind]),
    age === null ? 'not read yet' : `last read ${ageText(age * 1_000)} ago`,
    ...(isStale ? ['the saved state is served'] : []),
    ...(missing.length === 0 ? [] : [`not read: ${missing.join(', ')}`]),
    ...(trouble === '' ? [] : ['it fails']),
  ]
  return fact('source', parts.join('; '), { kind, ageSeconds: age, isStale, trouble })
}

function servicesFact({ services, refused, withoutEndpoint, quarantined, synced }: DaemonFacts): Fact {
  const without = withoutEndpoint?.services ?? 0
  const named = withoutEndpoint?.first ?? []
  const names = without === 0 ? '' : ` (${named.join(', ')}${without > named.length ? ', ...' : ''})`
  const refusedCount = refused === undefined ? undefined : refused.services + refused.objects
  const parts = [
    `${services ?? 0} ${synced === undefined ? 'known' : 'served'}`,
    ...(refusedCount === undefined ? [] : [`${refusedCount} with refused fields`]),
    ...(quarantined === 0 ? [] : [`${quarantined} rejected by the kernel`]),
    ...(withoutEndpoint === undefined ? [] : [`${without} without endpoint${names}`]),
  ]
  return fact('services', parts.join(', '), {
    served: services ?? null,
    refused: refusedCount ?? null,
    rejected: quarantined,
    withoutEndpoint: withoutEndpoint?.services ?? null,
  })
}

function kernelFact({ error, synced, repairs }: DaemonFacts): Fact {
  const state =
    synced === undefined
      ? 'not programmed'
      : error === ''
        ? 'holds the state of the daemon'
        : 'holds an older state'
  const number = repairs?.length
  const objects = (repairs ?? []).reduce((sum, each) => sum + each.objects, 0)
  const repaired =
    number === undefined
      ? ''
      : `; ${number === 0 ? 'no repair' : `${count(number, 'repair')} of ${count(objects, 'object')}`} in the last hour`
  return fact('kernel', `${state}${repaired}`, {
    isSynced: synced !== undefined && error === '',
    repairs: number ?? null,
    repairedObjects: objects,
  })
}

function credentialsFact({ tokenEndMs, certificateEndMs }: DaemonFacts, wallMs: number): readonly Fact[] {
  const ends = { token: tokenEndMs, certificate: certificateEndMs }
  const parts = Object.entries(ends).flatMap(([name, endMs]) =>
    endMs === undefined
      ? []
      : [endMs <= wallMs ? `${name} expired` : `${name} valid for ${ageText(endMs - wallMs)}`],
  )
  const secondsTo = (endMs: number | undefined) =>
    endMs === undefined ? null : Math.round((endMs - wallMs) / 1_000)
  const values = { tokenSeconds: secondsTo(tokenEndMs), certificateSeconds: secondsTo(certificateEndMs) }
  return parts.length === 0 ? [] : [fact('credentials', parts.join('; '), values)]
}

function conntrackFact({ conntrack }: StatusFacts): readonly Fact[] {
  if (conntrack === undefined) return []
  const { entries, entriesMax } = conntrack
  const share = entriesMax === undefined || entriesMax === 0 ? undefined : entries / entriesMax
  const text =
    share === undefined
      ? `${entries} entries`
      : `${entries} of ${entriesMax} entries (${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %)`
  return [fact('conntrack', text, { entries, entriesMax: entriesMax ?? null })]
}

/** Names the reasons for which most packets were refused, and rates where the daemon knows the totals of a minute ago. */
function packetsFact({ refused, daemon }: StatusFacts): readonly Fact[] {
  if (refused === undefined) return []
  const sums = new Map<string, number>()
  for (const { verdict, service, reason, packets } of refused)
    for (const key of [verdict, `${service} ${reason}`.trim()]) sums.set(key, (sums.get(key) ?? 0) + packets)
  const { reject: rejected = 0, drop: dropped = 0, ...reasons } = Object.fromEntries(sums)
  const largest = Object.entries(reasons).sort(([, a], [, b]) => b - a)
  const why = largest.slice(0, 3).map(([reason, packets]) => `${reason} ${packets}`)
  const before = daemon.kind === 'answers' ? daemon.refusedBefore : NOTHING_BEFORE
  const rejectedPerSecond = perSecond(rejected - before.rejected, before.ageMs)
  const droppedPerSecond = perSecond(dropped - before.dropped, before.ageMs)
  const totals = `${rejected} rejected${rateText(rejectedPerSecond)}, ${dropped} dropped${rateText(droppedPerSecond)}`
  const text = `${totals} since their rules were written${why.length === 0 ? '' : `: ${why.join(', ')}`}`
  return [fact('packets', text, { rejected, dropped, rejectedPerSecond, droppedPerSecond })]
}

const NOTHING_BEFORE = { rejected: 0, dropped: 0, ageMs: 0 } as const

/** Null where it is not known: counters start again with their rules. */
function perSecond(packets: number, ms: number): number | null {
  return packets < 0 || ms <= 0 ? null : Math.round((packets * 100_000) / ms) / 100
}

function rateText(rate: number | null): string {
  return rate === null ? '' : ` (${rate < 10 ? rate : Math.round(rate)}/s)`
}

function connectionsFact({ unanswered }: StatusFacts): readonly Fact[] {
  if (unanswered === undefined) return []
  const rows = unanswered.rows.filter(({ isOneWay }) => !isOneWay)
  const sum = (of: 'connections' | 'unanswered') => rows.reduce((total, row) => total + row[of], 0)
  const [connections, without] = [sum('connections'), sum('unanswered')]
  const limits = unanswered.limits === undefined ? '' : `; ${unanswered.limits}`
  const some = `${without} of ${connections} to ${count(rows.length, 'endpoint')}`
  const text = `${without === 0 ? 'none' : some} without reply in the last ${Math.round(unanswered.seenS)} s${limits}`
  return [
    fact('connections', text, { connections, unanswered: without, seconds: Math.round(unanswered.seenS) }),
  ]
}
