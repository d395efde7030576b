import type { Octets } from '../base/octets.ts'
import type { Steps } from '../base/steps.ts'
import { socketKey } from '../kernel/conntrack/flow.ts'
import { type FlowPort, flowPorts, type Version } from './ports.ts'

/** What a pass asks conntrack about one Service. */
export interface FlowCheck {
  readonly current: readonly FlowPort[]
  /** The ports of the Service since the last complete pass, to recognize the flows that it made then. */
  readonly former: readonly FlowPort[]
}

/** Undefined when nothing that changed can have left a flow behind: endpoints were added to others, say. */
export function* lookAt(former: readonly Version[], now: Version): Steps<FlowCheck | undefined> {
  const current = yield* flowPorts(now)
  const before: FlowPort[] = []
  for (const version of former) before.push(...(yield* flowPorts(version)))
  return leavesFlows(before, current) ? { current, former: before } : undefined
}

function leavesFlows(former: readonly FlowPort[], current: readonly FlowPort[]): boolean {
  const now = byPlace(current)
  const before = byPlace(former)
  for (const [place, ports] of before) if (ports.some(port => hasLost(port, now.get(place)?.[0]))) return true
  for (const [place, ports] of now) if (isNew(ports[0], before.get(place))) return true
  return false
}

/** The place, or an endpoint there, has gone. */
function hasLost(before: FlowPort, now: FlowPort | undefined): boolean {
  if (now === undefined) return before.protocol === 'UDP'
  for (const endpoint of before.endpoints) if (!now.endpoints.has(endpoint)) return true
  return false
}

/** There may be untranslated flows: there was no Service, or it had no endpoint. */
function isNew(now: FlowPort | undefined, before: readonly FlowPort[] | undefined): boolean {
  if (now === undefined) return false
  if (before === undefined) return true
  if (now.protocol === 'TCP') return before.some(({ drainMs }) => drainMs !== now.drainMs)
  return now.endpoints.size > 0 && before.some(({ endpoints }) => endpoints.size === 0)
}

function byPlace(ports: readonly FlowPort[]): ReadonlyMap<Octets, readonly FlowPort[]> {
  const found = new Map<Octets, FlowPort[]>()
  for (const port of ports) {
    const { protocol, family, nodePort } = port
    const places = port.sockets.map(socket => protocol + socketKey(socket.ip, socket.port))
    if (nodePort !== 0) places.push(`${protocol}${family}:${nodePort}`)
    for (const place of places) {
      const list = found.get(place)
      if (list === undefined) found.set(place, [port])
      else list.push(port)
    }
  }
  return found
}
