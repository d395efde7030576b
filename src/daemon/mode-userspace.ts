import { FAMILIES } from '../base/ip.ts'
import { finish } from '../base/steps.ts'
import type { Config } from '../config/config.ts'
import { createNftClient } from '../kernel/nft/client.ts'
import type { FrontendTable } from '../model/frontend.ts'
import { watchWriters } from '../modes/nftables/writers.ts'
import type { UserspacePlan } from '../modes/userspace/diff.ts'
import { DEFAULT_USERSPACE_OPTIONS, type UserspaceOptions } from '../modes/userspace/options.ts'
import { createUserspacePlane, isOurs } from '../modes/userspace/plane.ts'
import type { RelayEvent } from '../modes/userspace/relay/context.ts'
import { limitsWithin, type ProcessRoom } from '../modes/userspace/relay/limits.ts'
import { renderUserspaceState } from '../modes/userspace/render.ts'
import { EMPTY_STATE, type UserspaceState } from '../modes/userspace/state.ts'
import { createUserspaceTracer } from '../modes/userspace/trace.ts'
import { detectorOf } from './detector.ts'
import { userspaceExtent } from './extent.ts'
import { instanceOf } from './instance.ts'
import type { ModeContext, ModeEvent, ModeTracer, OpenPlane } from './mode.ts'

const COSTS =
  "userspace mode: this process relays every connection; endpoints see its address instead of the client's, and connections end with it; use it for debugging, or if the kernel supports no other mode"

/** Throws when the kernel's nf_tables cannot be spoken to. */
export function openUserspace({
  config,
  clock,
  sockets,
  tell,
}: ModeContext): OpenPlane<UserspaceState, UserspacePlan> {
  const transport = sockets.netfilter()
  const client = createNftClient({ transport, clock })
  const limits = limitsWithin(sockets.room?.() ?? NO_BOUNDS)
  const options = { ...userspaceOptions(config), limits }
  const watching = { openTransport: sockets.netfilter, own: transport.portId, table: options.tableName }
  const plane = createUserspacePlane({
    client,
    clock,
    options,
    watchWriters: report => watchWriters(watching, report),
    report: event => tell?.(modeEvent(event)),
  })
  return {
    plane,
    demand: () => undefined,
    start() {
      const { connections, sessions } = limits
      tell?.({ kind: 'notice', level: 'warn', text: COSTS, facts: { connections, sessions } })
      plane.startRelaying()
    },
    extent: ({ ruleset }) => userspaceExtent(ruleset),
    misfits: ({ refusals }) => [...refusals.values()].flat(),
    // What goes through this process is counted by nobody else, and not by endpoint.
    traffic: () => Promise.resolve([]),
    relayed() {
      const { listeners, connections, connectionsRefused, sessions, sessionsRefused, loops } = plane.counts
      const tcp = { held: connections, refused: connectionsRefused }
      return { listeners, tcp, udp: { held: sessions, refused: sessionsRefused }, loops }
    },
    async close() {
      plane.letGo()
      await client.close()
    },
  }
}

const NO_BOUNDS: ProcessRoom = { descriptors: undefined, memoryBytes: undefined }

function modeEvent(event: RelayEvent): ModeEvent {
  switch (event.kind) {
    case 'exhausted': {
      const { resource, limit, holder } = event
      const text =
        resource === 'connections'
          ? 'too many relayed connections; new ones are refused'
          : 'too many relayed UDP clients; datagrams of new ones are dropped'
      return { kind: 'notice', level: 'warn', text, facts: { limit, of: holder ?? 'all Services' } }
    }
    case 'unreachable': {
      const { port, endpoint, error } = event
      const text = 'endpoint does not accept connections; trying others'
      return { kind: 'notice', level: 'info', text, facts: { port, endpoint, error: error.message } }
    }
    case 'starved': {
      const text = 'cannot open a socket to an endpoint; the client is refused'
      return { kind: 'notice', level: 'warn', text, facts: { port: event.port, error: event.error.message } }
    }
    case 'loop': {
      const text = 'refused a connection that this process made to itself'
      return { kind: 'notice', level: 'warn', text, facts: { port: event.port } }
    }
    case 'broken':
      return { kind: 'failed', error: new Error(`relay of ${event.port}: ${event.error.message}`) }
  }
}

/** Deletes our tables at once: what was redirected goes on for as long as the process that relays it. */
export async function retireUserspace(
  { config, clock, sockets }: ModeContext,
  signal: AbortSignal,
): Promise<boolean> {
  const client = createNftClient({ transport: sockets.netfilter(), clock })
  const plane = createUserspacePlane({ client, clock, options: userspaceOptions(config) })
  try {
    const { state } = await plane.observe()
    const isHere = state.ruleset.tables.some(isOurs)
    if (isHere && !signal.aborted) await plane.cleanup()
    return isHere
  } finally {
    await client.close()
  }
}

export function userspaceTracer(config: Config, table: FrontendTable): ModeTracer {
  const options = userspaceOptions(config)
  const state = finish(renderUserspaceState(table, { base: EMPTY_STATE, without: new Set() }, options))
  return { ...createUserspaceTracer(state), ownSource: () => undefined }
}

export function userspaceOptions({ detectLocal, serviceProxyName }: Config): UserspaceOptions {
  const { userspace: tableName, natPriority } = instanceOf(serviceProxyName)
  const [IPv4, IPv6] = FAMILIES.map(family => detectorOf(detectLocal, family))
  return { ...DEFAULT_USERSPACE_OPTIONS, tableName, natPriority, detector: { IPv4, IPv6 } }
}
