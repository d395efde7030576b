import { PersistentMap } from '../../base/collections.ts'
import { formatIpPort } from '../../base/ip.ts'
import { FlagReader, quote, readArguments } from '../../config/flag.ts'
import type { PageSource } from '../../daemon/optional-parts.ts'
import { objectText } from '../../model/fields.ts'
import type { PortFrontends, ServiceFrontends } from '../../model/frontend.ts'
import type { Service } from '../../model/service.ts'
import type { TopState } from '../live/top-sampler.ts'
import { knownIn, type Loaded } from '../load.ts'
import { rounded, shareByDestination } from '../why/answer.ts'
import { QUESTION_FLAGS, readQuestion, resolveQuestion } from '../why/explain-question.ts'
import { whyUnserved } from '../why/explain-reasons.ts'
import { type Explanation, explained, followed } from '../why/explanation.ts'
import { unforwarded } from '../why/outcome.ts'

interface Target {
  /** The value of `--to` of `kprobe why`. */
  readonly to: string
  readonly label: string
  readonly port: PortFrontends
}

const LISTED_MAX = 500
/** Endpoints of one port that a path is followed to: each takes some 0.2 ms, in which the daemon does nothing else. */
const FOLLOWED_MAX = 1_000

const NO_KERNEL = {
  kind: 'unknown',
  reason: 'the page does not read the rules in the kernel; `kprobe why` does',
} as const

/**
 * Explains the path to one Service (`service`), or to one of its frontends (`to`), for a client (`from`), as the daemon
 * understands it: the steps that decide, their rules, and its endpoints with the reasons. Throws for what is not there.
 */
export function pathOf(
  source: PageSource,
  query: URLSearchParams,
  measured: MeasuredEndpoints = {},
): unknown {
  const { snapshot, table, memo } = source.held() ?? {}
  const key = query.get('service') ?? ''
  if (snapshot === undefined || table === undefined || memo === undefined)
    throw new Error('the daemon has not read all objects yet')
  const known = { snapshot, table, memo, ...knownIn(source.snapshot()) }
  const service = snapshot.services.get(key)
  if (service === undefined) {
    const refusal = known.refusedObjects.find(({ object }) => object === objectText('Service', key))
    throw new Error(refusal === undefined ? `no Service ${quote(key)}` : `not served: ${refusal.reason}`)
  }
  const held = table.services.get(key)
  const targets = targetsOf(held, snapshot.node?.name)
  const [first] = targets
  const to = query.get('to') ?? first?.to
  const from = query.get('from') ?? 'outside'
  if (held === undefined || to === undefined)
    return { service: key, targets: [], from, answer: unservedText(service, known, source.wallMs()) }
  const target = targets.find(each => each.to === to)
  if (target === undefined) throw new Error(`Service ${key} is not served at ${quote(to)}`)
  const listed = targets.slice(0, LISTED_MAX).map(({ to, label }) => ({ to, label }))
  const { cluster, local } = target.port
  const size = Math.max(cluster.length, local.length)
  if (size > FOLLOWED_MAX) {
    const answer = `${key} has ${size} endpoints at this port, and the page follows the path to ${FOLLOWED_MAX} at most: \`kprobe why\` follows it to all`
    return { service: key, targets: listed, from, to, answer }
  }
  const question = questionOf(from, to)
  const loaded = {
    ...known,
    // The rules of all ports would block the daemon for too long.
    table: { ...table, services: PersistentMap.from([[key, { ...held, ports: [target.port] }]]) },
  }
  const path = followed(resolveQuestion(question, snapshot), source.config(), loaded)
  const explanation = explained(path, unforwarded(path.asked, source.sysctls) ?? NO_KERNEL, {
    hasDaemon: true,
    unanswered: measured.unanswered,
    wallMs: source.wallMs(),
  })
  const { answer, isServed, service: port, frontend, reasons, notKnown, affinitySeconds, rules } = explanation
  return {
    service: key,
    targets: listed,
    from,
    to,
    answer,
    isServed,
    port,
    frontend,
    reasons,
    notKnown,
    rules: rules.map(({ chain, text }) => ({ chain, text })),
    affinitySeconds,
    ...endpointsOf(explanation, measured.rows),
  }
}

function targetsOf(held: ServiceFrontends | undefined, nodeName: string | undefined): readonly Target[] {
  return (held?.ports ?? []).flatMap(its => {
    const { frontends, protocol, displayName } = its
    return frontends.flatMap(({ kind, ip, port }) => {
      const place = ip === undefined ? `node/${nodeName}:${port}` : formatIpPort(ip, port)
      if (ip === undefined && nodeName === undefined) return []
      const label = `${kind} ${place}/${protocol}, ${displayName}`
      return [{ to: `${place}/${protocol.toLowerCase()}`, label, port: its }]
    })
  })
}

function questionOf(from: string, to: string) {
  const reader = new FlagReader(readArguments([`--from=${from}`, `--to=${to}`], QUESTION_FLAGS))
  const question = readQuestion(reader)
  const [error] = reader.errors
  if (error !== undefined || question === undefined)
    throw new Error(error === undefined ? 'no question' : `${error.path} ${error.message}`)
  return question
}

/** What the sampler has seen of endpoints last. */
type MeasuredEndpoints = Partial<Pick<TopState, 'rows' | 'unanswered'>>

function endpointsOf(
  { outcomes, endpoints, list = 'cluster', service }: Explanation,
  measured: MeasuredEndpoints['rows'],
) {
  const shares = shareByDestination(outcomes)
  const its = measured?.filter(row => row.service === service)
  const rates = its && new Map(its.map(({ endpoint, perSecond }) => [endpoint, perSecond]))
  const rows = endpoints.map(({ address, pod, node, zone, slice, unanswered, [list]: { isIn, reason } }) => {
    const share = shares.get(address)
    const { connections = 0, unanswered: silent = 0 } = unanswered ?? {}
    return {
      address,
      pod,
      node,
      zone,
      slice,
      isIn,
      reason,
      ...(share === undefined ? {} : { percent: rounded(share) }),
      ...(rates === undefined ? {} : { perSecond: rates.get(address) ?? 0 }),
      ...(silent === 0 ? {} : { unanswered: silent, connections }),
    }
  })
  const sorted = rows.sort((a, b) => Number(b.isIn) - Number(a.isIn))
  return {
    policy: list,
    endpoints: sorted.slice(0, LISTED_MAX),
    moreEndpoints: Math.max(0, rows.length - LISTED_MAX),
  }
}

/** Says why nothing leads to a Service that has no frontend on this node, as `kprobe why` does. */
function unservedText(service: Service, loaded: Loaded, wallMs: number): string {
  const reasons =
    service.type === 'ExternalName'
      ? []
      : whyUnserved(service, {
          ...loaded,
          overCap: loaded.memo.caps.refused.values(),
          wallMs,
        })
  return reasons.length === 0
    ? `${service.key} needs no rules on this node`
    : reasons.map(({ text }) => text).join('; ')
}
