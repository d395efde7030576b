import { formatIp, type Ip } from '../../base/ip.ts'
import { endText, type PacketHead, protocolText } from '../../base/ip-packet.ts'
import { rfc3339 } from '../../base/text.ts'
import type { Tracked } from '../../kernel/conntrack/record.ts'
import { type PodNames, podText } from '../../model/pod-names.ts'
import { reasonText, type VerdictReason, verdictReason } from '../../modes/common/logs.ts'
import type { ServiceRow } from '../../modes/common/show.ts'
import type { TraceStep } from '../../proof/evaluate/trace.ts'
import type { TracedPacket } from './packet-collector.ts'

export interface NamedStep extends TraceStep {
  /** `accept`, `drop`, `jump services`; absent where the kernel names none. */
  readonly verdict: string | undefined
  readonly isReject: boolean
  readonly isOurs: boolean
  /** The rule within its chain: `rule 3`, `policy`. */
  readonly place: string
  readonly chainName: string
}

/** A packet by itself, for people and for `-o json`. */
export interface PacketFacts {
  readonly time: string
  readonly protocol: string
  readonly from: string
  readonly to: string
  readonly service: string | undefined
  readonly frontend: string | undefined
  readonly arrivedBy: string | undefined
  /** `namespace/name` of the Pod that sent it, where an EndpointSlice names it. */
  readonly fromPod: string | undefined
}

export function factsOf(
  head: PacketHead,
  { row, interfaceName, pods }: Pick<StoryFacts, 'row' | 'interfaceName' | 'pods'>,
  { atMs, inputInterface }: { readonly atMs: number; readonly inputInterface: number | undefined },
): PacketFacts {
  return {
    time: rfc3339(atMs),
    protocol: protocolText(head.protocol),
    from: endText(head, 'source'),
    to: endText(head, 'destination'),
    service: row?.service,
    frontend: row?.type,
    arrivedBy: inputInterface === undefined ? undefined : interfaceName(inputInterface),
    fromPod: pods(formatIp(head.source)),
  }
}

export function factsText(facts: PacketFacts, answer: string): string {
  const { time, protocol, from, to, service, frontend, arrivedBy, fromPod } = facts
  const name = service === undefined ? '' : ` ${service} (${frontend})`
  const via = arrivedBy === undefined ? ' from this node' : ` from ${arrivedBy}`
  return `${time} ${protocol} ${podText(from, fromPod)} -> ${to}${name}${via}: ${answer}`
}

/** The way of a packet, for people and for `-o json`, which leaves out what is undefined. */
export interface PacketStory extends PacketFacts {
  readonly outcome: StoryOutcome
  readonly steps: readonly StoryStep[]
  readonly conntrack: StoryConntrack | undefined
  /** conntrack has no entry. Protocols without ports, such as ICMP, are not looked up. */
  readonly hasNoEntry: true | undefined
  /** The kernel dropped messages meanwhile: steps may be missing. */
  readonly isTorn: true | undefined
}

type StoryStep = TraceStep & Pick<NamedStep, 'verdict'>

interface StoryOutcome {
  readonly verdict: 'dnat' | 'accept' | 'reject' | 'drop' | 'queue' | 'lost'
  readonly answer: string
  readonly destination?: string
  /** `namespace/name` of the Pod at `destination`. */
  readonly pod?: string | undefined
  readonly replacedSource?: string | undefined
  readonly leftBy?: string | undefined
  /** The chain whose rule or policy ended it. */
  readonly decidedBy?: string
  readonly reason?: VerdictReason | 'another-program'
}

interface StoryConntrack {
  readonly from: string
  readonly to: string
  readonly repliesFrom: string
  readonly repliesTo: string
  readonly status: readonly string[]
  readonly timeoutSeconds: number | undefined
  readonly mark: number | undefined
}

export interface StoryFacts {
  readonly steps: readonly NamedStep[]
  readonly row: ServiceRow | undefined
  /** Undefined where it was not looked up. */
  readonly tracked: Tracked | 'none' | undefined
  readonly interfaceName: (index: number) => string
  readonly pods: PodNames
}

export function storyOf(packet: TracedPacket, facts: StoryFacts): PacketStory {
  const { tracked, steps } = facts
  return {
    ...factsOf(packet.first, facts, packet),
    outcome: outcomeOf(packet, facts),
    steps: steps.map(({ chain, rule, text, elements, verdict }) => ({
      chain,
      rule,
      text,
      elements,
      verdict,
    })),
    conntrack: tracked === undefined || tracked === 'none' ? undefined : conntrackOf(tracked),
    hasNoEntry: tracked === 'none' || undefined,
    isTorn: packet.isTorn || undefined,
  }
}

function outcomeOf(packet: TracedPacket, facts: StoryFacts): StoryOutcome {
  switch (packet.end) {
    case 'dropped':
      return endedOutcome(facts)
    case 'queued':
      return { verdict: 'queue', answer: 'was queued to a program (NFQUEUE), which has not returned it' }
    case 'vanished':
      return vanishedOutcome(packet)
    case 'sent':
    case 'delivered':
      return passedOutcome(packet, facts)
  }
}

function endedOutcome({ steps, row }: StoryFacts): StoryOutcome {
  const step = steps.at(-1)
  const verdict = step?.isReject === true ? 'reject' : 'drop'
  const word = verdict === 'reject' ? 'rejected' : 'dropped'
  if (step === undefined) return { verdict, answer: `${word} by a rule that the kernel did not report` }
  const { chain, place, isOurs, chainName, text } = step
  if (!isOurs) {
    const answer = `${word} by another program: ${chain}, ${place}`
    return { verdict, answer, decidedBy: chain, reason: 'another-program' }
  }
  const reason = verdictReason({ chain: chainName, text, isServed: row !== undefined })
  return { verdict, answer: `${word}: ${reasonText(reason)}`, decidedBy: chain, reason }
}

function vanishedOutcome({ steps, isTorn }: TracedPacket): StoryOutcome {
  const last = steps.at(-1)
  const after = last === undefined ? '' : ` after ${last.family} ${last.table} ${last.chain}`
  const why = isTorn
    ? 'messages of the kernel were lost'
    : 'no rule of nf_tables dropped it: check for a missing route, rp_filter, a full conntrack table, IPVS, legacy iptables, or tc'
  return { verdict: 'lost', answer: `was not seen again${after}; ${why}` }
}

function passedOutcome(packet: TracedPacket, { interfaceName, pods }: StoryFacts): StoryOutcome {
  const { first, last, end, outputInterface } = packet
  const destination = endText(last, 'destination')
  const source = endText(last, 'source')
  const isTranslated = destination !== endText(first, 'destination')
  const replaced = source === endText(first, 'source') ? undefined : source
  const by = end === 'sent' && outputInterface !== undefined ? interfaceName(outputInterface) : undefined
  const where = by === undefined ? ' on this node' : ` by ${by}`
  const kept = replaced === undefined ? 'source address kept' : `source replaced by ${replaced}`
  const passes = replaced === undefined ? 'passes unchanged' : by === undefined ? 'arrives' : 'leaves'
  const pod = isTranslated ? pods(destination) : undefined
  const goes = isTranslated ? `goes to ${podText(destination, pod)}` : passes
  return {
    verdict: isTranslated ? 'dnat' : 'accept',
    answer: `${goes}${where}${isTranslated || replaced !== undefined ? `, ${kept}` : ''}`,
    destination,
    pod,
    replacedSource: replaced,
    leftBy: by,
  }
}

function conntrackOf({ original, reply, status, timeoutS, mark }: Tracked): StoryConntrack {
  return {
    from: endText(original, 'source'),
    to: endText(original, 'destination'),
    repliesFrom: endText(reply, 'source'),
    repliesTo: endText(reply, 'destination'),
    status,
    timeoutSeconds: timeoutS,
    mark: mark === 0 ? undefined : mark,
  }
}

/** Tests whether a packet got no further than this node's rules. */
export function isRefused({ verdict }: StoryOutcome): boolean {
  return verdict === 'reject' || verdict === 'drop' || verdict === 'lost'
}

export function storyLines(story: PacketStory): readonly string[] {
  const { outcome, steps, conntrack } = story
  return [
    factsText(story, outcome.answer),
    ...steps.flatMap(stepLines),
    ...(story.isTorn === true ? ['  steps may be missing: messages of the kernel were lost'] : []),
    ...(story.hasNoEntry === true ? ['  conntrack: no entry'] : []),
    ...(conntrack === undefined ? [] : [`  conntrack: ${conntrackText(conntrack)}`]),
  ]
}

function stepLines({ chain, rule, text, elements }: StoryStep): readonly string[] {
  const place = rule === 0 ? chain : `${chain}, rule ${rule}`
  return [`  ${place}: ${text}`, ...elements.map(element => `      ${element}`)]
}

function conntrackText({
  from,
  to,
  repliesFrom,
  repliesTo,
  status,
  timeoutSeconds,
  mark,
}: StoryConntrack): string {
  const details = [
    ...status,
    ...(timeoutSeconds === undefined ? [] : [`${timeoutSeconds} s left`]),
    ...(mark === undefined ? [] : [`mark ${mark}`]),
  ]
  return `${from} -> ${to}, replies ${repliesFrom} -> ${repliesTo}; ${details.join(', ')}`
}

export class ServiceIndex {
  readonly #rows = new Map<string, ServiceRow>()
  readonly #localIps: ReadonlySet<Ip>

  constructor(rows: readonly ServiceRow[], localIps: ReadonlySet<Ip>) {
    this.#localIps = localIps
    for (const row of rows) {
      const key = `${row.protocol} ${row.frontend}`
      if (!this.#rows.has(key)) this.#rows.set(key, row)
    }
  }

  at(head: PacketHead): ServiceRow | undefined {
    const { ports, protocol, destination } = head
    if (ports === undefined) return undefined
    const name = protocolText(protocol)
    const found = this.#rows.get(`${name} ${endText(head, 'destination')}`)
    if (found !== undefined || !this.#localIps.has(destination)) return found
    return this.#rows.get(`${name} ${destination.length === 4 ? '*' : '[*]'}:${ports.destination}`)
  }
}
