import { ageText } from '../../base/duration.ts'
import { count, rfc3339 } from '../../base/text.ts'
import type { Finding } from '../../modes/mode.ts'
import { failedOverText } from '../live/top-sampler.ts'
import { isSilent, type UnansweredRow, unansweredText } from '../live/unanswered-rows.ts'
import type { Problem } from './status-document.ts'
import type { AbsentDaemon, ConntrackUse, DaemonFacts, StatusFacts } from './status-facts.ts'

/** Lists what is wrong, errors first. */
export function problemsOf(facts: StatusFacts): readonly Problem[] {
  const { daemon } = facts
  const all = [
    ...(daemon.kind === 'answers'
      ? daemonProblems(daemon, facts.wallMs)
      : absenceProblems(daemon, facts.rules?.modes ?? [])),
    ...(facts.rules?.findings ?? []).flatMap(finding => findingProblems(finding, daemon)),
    ...conntrackProblems(facts.conntrack),
    ...(facts.unanswered?.rows ?? []).flatMap(unansweredProblems),
  ]
  return [...all.filter(({ level }) => level === 'error'), ...all.filter(({ level }) => level === 'warning')]
}

function absenceProblems({ kind, text }: AbsentDaemon, modes: readonly string[]): readonly Problem[] {
  const rules =
    modes.length === 0 ? '' : `; rules of ${modes.join(' and ')} mode stay and do not follow changes`
  const start =
    modes.length === 0 ? 'start kprobe' : 'start kprobe, or remove its rules with `kprobe cleanup`'
  if (kind === 'absent')
    return [{ level: 'error', kind: 'no-daemon', text: `no daemon runs: ${text}${rules}`, hint: start }]
  const hint = 'see whether its process is stopped or busy; restart it'
  return [{ level: 'error', kind: 'daemon-silent', text: `the daemon does not answer: ${text}`, hint }]
}

/** A source sends a sign of life every minute or two. */
const SILENT_MS = 300_000

function daemonProblems(daemon: DaemonFacts, wallMs: number): readonly Problem[] {
  return [
    ...kernelProblems(daemon),
    ...sourceProblems(daemon),
    ...serviceProblems(daemon),
    ...failOverProblems(daemon),
    ...repairProblems(daemon.repairs ?? [], wallMs),
    ...expiryProblems('certificate', daemon.certificateEndMs, wallMs),
    ...expiryProblems('token', daemon.tokenEndMs, wallMs),
  ]
}

function kernelProblems({ error, quarantined, rejected, synced }: DaemonFacts): readonly Problem[] {
  const hint = '`kprobe doctor` lists what the kernel lacks'
  const failed: Problem = {
    level: 'error',
    kind: 'sync-failed',
    text: `the last write to the kernel failed: ${error}${synced === undefined ? '' : '; the kernel keeps the last state'}`,
    hint,
  }
  const names = rejected.map(each => `${each.service}: ${each.error}`).join('; ')
  const more = quarantined > rejected.length && rejected.length > 0 ? '; ...' : ''
  const number = Math.max(quarantined, rejected.length)
  const text = `the kernel rejects ${count(number, 'Service')}, or IP family${names === '' ? '' : `: ${names}${more}`}`
  return [
    ...(error === '' ? [] : [failed]),
    ...(number === 0 ? [] : [{ level: 'error', kind: 'services-rejected', text, hint } as const]),
  ]
}

function sourceProblems({ source, synced, notReady, error }: DaemonFacts): readonly Problem[] {
  const { trouble, missing, isStale, silentMs } = source
  const hint = 'the log of the daemon has the errors of its source'
  const stale = isStale ? '; the saved state is served' : ''
  if (synced === undefined) {
    if (error !== '') return []
    const why =
      trouble !== '' ? trouble : missing.length > 0 ? `it has not read ${missing.join(', ')}` : notReady
    const text = `nothing is programmed yet${why === '' ? '' : `: ${why}`}`
    return [{ level: 'error', kind: 'not-programmed', text, hint }]
  }
  if (trouble !== '') {
    const text = `the source fails: ${trouble}${stale || '; Services and endpoints stay as they are'}`
    return [{ level: 'warning', kind: 'source-failed', text, hint }]
  }
  if (isStale)
    return [{ level: 'warning', kind: 'source-stale', text: `the source is not read yet${stale}`, hint }]
  if (silentMs !== undefined && silentMs > SILENT_MS) {
    const text = `the source is silent for ${ageText(silentMs)}: changes may be missing`
    return [{ level: 'warning', kind: 'source-silent', text, hint }]
  }
  if (notReady === '') return []
  const text = `/healthz answers 503: ${notReady}`
  return [{ level: 'warning', kind: 'not-ready', text, hint: 'load balancers avoid this node' }]
}

function serviceProblems({ refused }: DaemonFacts): readonly Problem[] {
  if (refused === undefined || refused.services + refused.objects === 0) return []
  const what = [
    ...(refused.services === 0 ? [] : [`fields of ${count(refused.services, 'Service')}`]),
    ...(refused.objects === 0 ? [] : [count(refused.objects, 'object')]),
  ]
  const first = refused.first.map(({ object, field, value, reason }) => {
    const place = field === '' ? '' : ` ${field} = ${value}`
    return `${object}:${place} ${reason}`
  })
  const more = refused.services + refused.objects > first.length ? '; ...' : ''
  const text = `refused: ${what.join(' and ')}: ${first.join('; ')}${more}`
  const service = refused.first.find(each => each.service !== '')?.service
  const hint = '`kprobe plan` lists all'
  return [
    { level: 'warning', kind: 'services-refused', text, hint, ...(service === undefined ? {} : { service }) },
  ]
}

function failOverProblems({ failedOver }: DaemonFacts): readonly Problem[] {
  const service = failedOver[0]?.service
  if (service === undefined) return []
  const text = `${count(failedOver.length, 'endpoint')} without a reply, out for a time: ${failedOverText(failedOver)}`
  return [{ level: 'warning', kind: 'failed-over', text, hint: `\`kprobe why ${service}\``, service }]
}

/** Names the last process that is known. A clock that was set back must not give an age below zero. */
function repairProblems(repairs: NonNullable<DaemonFacts['repairs']>, wallMs: number): readonly Problem[] {
  const last = repairs.at(-1)
  if (last === undefined) return []
  const by = repairs.findLast(({ process }) => process !== '')?.process
  const ago = ageText(Math.max(0, wallMs - Date.parse(last.at)))
  const text = `another program changed kprobe's rules; repaired ${count(repairs.length, 'time')} in the last hour, last ${ago} ago${by === undefined ? '' : `; changed by ${by}`}`
  return [{ level: 'warning', kind: 'repaired', text, hint: '`kprobe doctor` lists other programs' }]
}

const DAY_MS = 86_400_000
/** The kubelet renews a token long before these. */
const SOON_MS: Readonly<Record<'certificate' | 'token', number>> = { certificate: 7 * DAY_MS, token: 120_000 }

function expiryProblems(
  what: 'certificate' | 'token',
  endMs: number | undefined,
  wallMs: number,
): readonly Problem[] {
  if (endMs === undefined || endMs - wallMs > SOON_MS[what]) return []
  const isOver = endMs <= wallMs
  const text = `the ${what} for the API server ${isOver ? 'expired' : 'expires'} at ${rfc3339(endMs)}`
  const hint = 'renew it: the daemon reads the file again by itself'
  return [{ level: isOver ? 'error' : 'warning', kind: `${what}-expiry`, text, hint }]
}

function findingProblems(
  { kind, subject, text }: Finding,
  daemon: StatusFacts['daemon'],
): readonly Problem[] {
  const named = `${subject}: ${text}`
  if (kind === 'damaged')
    return [
      { level: 'error', kind: 'rules-damaged', text: named, hint: '`kprobe verify` names what differs' },
    ]
  if (kind !== 'warning') return []
  const servesIpv6 = daemon.kind === 'answers' && daemon.families.includes('IPv6')
  if (subject === 'net/ipv6/conf/all/forwarding' && !servesIpv6) return []
  return [{ level: 'warning', kind: 'check', text: named, hint: '`kprobe doctor` explains it' }]
}

/** Beyond the first, connections are soon refused; beyond the second, they are now. */
const FILLING = 0.8
const FULL = 0.98

/** Tests whether connections will soon be refused. A table without a limit does not fill. */
export function isFilling({ entries, entriesMax = 0 }: Omit<ConntrackUse, 'largest'>): boolean {
  return entriesMax > 0 && entries > entriesMax * FILLING
}

function conntrackProblems(conntrack: StatusFacts['conntrack']): readonly Problem[] {
  if (conntrack === undefined || !isFilling(conntrack)) return []
  const { entries, entriesMax = 0, largest } = conntrack
  const users = largest.map(({ service, open }) => `${service} ${open}`).join(', ')
  const isFull = entries >= entriesMax * FULL
  const text = `the connection table is ${isFull ? 'full' : 'filling'}: ${entries} of ${entriesMax} entries${isFull ? '; new connections are dropped' : ''}${users === '' ? '' : `; most entries: ${users}`}`
  const hint = '`kprobe top` shows how it fills; raise nf_conntrack_max'
  return [{ level: isFull ? 'error' : 'warning', kind: 'conntrack-full', text, hint }]
}

/** Fewer connections may be one client that gave up. */
const UNANSWERED_MIN = 3

function unansweredProblems(row: UnansweredRow): readonly Problem[] {
  if (!isSilent(row, UNANSWERED_MIN)) return []
  const service = row.service.split(':')[0] ?? ''
  const text = `${row.service}: ${unansweredText(row)}`
  const pod = row.pod === undefined ? {} : { pod: row.pod }
  return [{ level: 'error', kind: 'unanswered', text, hint: `\`kprobe why ${service}\``, service, ...pod }]
}
