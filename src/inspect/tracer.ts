import { formatIp, formatIpPort, type Ip } from '../base/ip.ts'
import type { Backend } from '../model/frontend.ts'
import type { TracedListener, TracedListeners, TracedRules } from '../modes/common/traced-rules.ts'
import type { DynamicElements } from '../proof/evaluate/single.ts'
import { createTracer, type Trace, type TracePacket, type Tracer } from '../proof/evaluate/trace.ts'

/** Follows packets through the rules of a mode, and on to endpoints where this process carries connections. */
export function tracerOf(traced: TracedRules): Tracer {
  const rules = createTracer(traced)
  return traced.listeners === undefined ? rules : throughListeners(rules, traced.listeners)
}

/** Makes the tracer for the first packet: often none comes, and iptables mode translates all its chains for it. */
export function lazyTracer(traced: () => TracedRules): Tracer {
  let made: Tracer | undefined
  const tracer = (): Tracer => {
    made ??= tracerOf(traced())
    return made
  }
  return {
    trace: (...args) => tracer().trace(...args),
    ways: (...args) => tracer().ways(...args),
  }
}

/** The key for clients that this process remembers, among the elements that packets wrote. */
const CLIENTS = 'userspace clients'

/** Leads packets on from a listener. Round robin is assumed to choose any endpoint; the source is then this node. */
function throughListeners(rules: Tracer, { at, maps }: TracedListeners): Tracer {
  const redirect = new RegExp(`^(?:${[...maps].join('|')}): `)
  const listenerOf = ({ protocol }: TracePacket, { destination: { ip, port } }: Trace): TracedListener => {
    const listener = at(protocol, ip, port)
    if (listener === undefined) throw new Error(`no relay listens at ${formatIpPort(ip, port)}`)
    return listener
  }
  return {
    trace(packet, surroundings) {
      const found = rules.trace(packet, surroundings)
      if (found.verdict !== 'dnat') return found
      const listener = listenerOf(packet, found)
      const choices = choicesOf(listener, packet.source, surroundings.dynamic)
      const chosen = choices[choices.length === 1 ? 0 : surroundings.random(choices.length)]
      return through(found, { listener, redirect, source: packet.source, chosen })
    },
    ways: (packet, surroundings, limit) =>
      rules.ways(packet, surroundings, limit).flatMap(way => {
        if (way.trace.verdict !== 'dnat') return [way]
        const listener = listenerOf(packet, way.trace)
        const choices = choicesOf(listener, packet.source, surroundings.dynamic)
        return choices.map(chosen => ({
          trace: through(way.trace, { listener, redirect, source: packet.source, chosen }),
          probability: way.probability / choices.length,
        }))
      }),
  }
}

/** Gives the endpoints that a listener may choose for a client: one, if it remembers the client. */
function choicesOf(
  { key, endpoints, affinityTimeoutS }: TracedListener,
  source: Ip,
  dynamic: DynamicElements | undefined,
): readonly Backend[] {
  if (endpoints.length === 0) throw new Error(`a list without endpoints has a listener: ${key}`)
  const last = affinityTimeoutS > 0 ? dynamic?.get(CLIENTS)?.get(clientOf(key, source)) : undefined
  const known = endpoints.find(one => endpointText(one) === last)
  return known === undefined ? endpoints : [known]
}

function clientOf(key: string, source: Ip): string {
  return `${key} ${formatIp(source)}`
}

function endpointText({ ip, port }: Backend): string {
  return formatIpPort(ip, port)
}

interface Passage {
  readonly listener: TracedListener
  readonly redirect: RegExp
  readonly source: Ip
  readonly chosen: Backend | undefined
}

function through(found: Trace, { listener, redirect, source, chosen }: Passage): Trace {
  if (chosen === undefined) throw new Error('a roll is below its modulus')
  const { key, protocol, name, list, endpoints, affinityTimeoutS } = listener
  const clients = new Map(found.dynamic.get(CLIENTS))
  if (affinityTimeoutS > 0) clients.set(clientOf(key, source), endpointText(chosen))
  const step: Trace['steps'][number] = {
    chain: `relay ${protocol} ${name} (${list})`,
    rule: 1,
    text: 'round robin, from this node',
    elements: endpoints.map(endpointText),
  }
  return {
    ...found,
    destination: { ip: chosen.ip, port: chosen.port },
    masquerade: true,
    steps: [...found.steps.map(one => withoutNumbers(one, redirect)), step],
    dynamic: new Map(found.dynamic).set(CLIENTS, clients),
  }
}

/** Removes the numbers from a step, because the port of a listener is unknown here. */
function withoutNumbers(step: Trace['steps'][number], redirect: RegExp): Trace['steps'][number] {
  const elements = step.elements.map(text =>
    redirect.test(text) ? text.replace(/ \. \d+$/, ' . a port that the daemon chooses') : text,
  )
  return { ...step, elements }
}
