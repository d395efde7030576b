import { Pauses, type Steps } from '../../base/clock.ts'
import { PersistentMap } from '../../base/collections.ts'
import { type Family, formatIpPort } from '../../base/ip.ts'
import type { Backend, FrontendTable, ServiceFrontends } from '../../model/frontend.ts'
import { backendsAtLocalhost, LOCALHOST } from '../../model/node-context.ts'
import type { ListName } from '../common/relay/balancer.ts'
import { diffRelays, type Relay, sameRelay } from '../common/relay/relay.ts'
import type { NftablesPlan, NftablesState } from './state.ts'

type Families = readonly Family[]

const NO_FAMILIES: Families = []
const NO_BACKENDS: readonly Backend[] = []
/** One listener serves a node port, whatever its policy: it keeps its socket when the policy changes. */
const LISTS: readonly ListName[] = ['cluster']

/**
 * Gives the relay of each node port of a Service at localhost (KEP-6032). A port that has no endpoint for clients
 * there has none: the kernel then refuses connections, because no socket listens.
 */
function localhostRelays({ service, ports }: ServiceFrontends, families: Families): readonly Relay[] {
  const relays: Relay[] = []
  for (const port of ports) {
    const { protocol, family, displayName, affinityTimeoutS } = port
    if (protocol === 'SCTP' || !families.includes(family)) continue
    const cluster = backendsAtLocalhost(port)
    const nodePort = port.frontends.find(({ kind }) => kind === 'NodePort')?.port
    if (nodePort === undefined || cluster.length === 0) continue
    const address = LOCALHOST[family]
    relays.push({
      key: `${port.key} ${formatIpPort(address, nodePort)}`,
      displayName,
      service,
      protocol,
      address,
      port: nodePort,
      lists: LISTS,
      balance: { affinityTimeoutS, cluster, local: NO_BACKENDS },
    })
  }
  return relays
}

/** Gives a plan that also changes the relays of this process, from these to those of its `after`. */
export function withRelays(plan: NftablesPlan, from: NftablesState['relays']): NftablesPlan {
  const relays = diffRelays(from, plan.after.relays)
  const { lines } = relays
  if (lines.length === 0) return plan
  return {
    ...plan,
    relays,
    empty: false,
    changes: plan.changes + lines.length,
    *describe() {
      yield* plan.describe()
      yield* lines
    },
  }
}

/** Builds the relays of one render from those of its base. */
export class RelayDraft {
  readonly #base: NftablesState
  readonly #families: Families
  readonly #continuing: boolean
  readonly #changes = new Map<string, Relay | undefined>()

  constructor(base: NftablesState, { relayedAtLocalhost = NO_FAMILIES }: FrontendTable) {
    this.#base = base
    this.#families = relayedAtLocalhost
    const before = base.frontends?.relayedAtLocalhost ?? NO_FAMILIES
    this.#continuing = base.frontends !== undefined && before.join() === relayedAtLocalhost.join()
  }

  replace(before: ServiceFrontends | undefined, after: ServiceFrontends | undefined): void {
    if (!this.#continuing || this.#families.length === 0) return
    for (const { key } of this.#relaysOf(before)) this.#changes.set(key, undefined)
    for (const relay of this.#relaysOf(after)) this.#changes.set(relay.key, this.#known(relay))
  }

  /** Gives all relays. A Service that the kernel does not hold has none. */
  *finish({ services }: FrontendTable, isLeftOut: (key: string) => boolean): Steps<PersistentMap<Relay>> {
    if (this.#continuing)
      return this.#changes.size === 0 ? this.#base.relays : this.#base.relays.withOwn(this.#changes)
    if (this.#families.length === 0) return PersistentMap.empty()
    const relays = new Map<string, Relay>()
    const pauses = new Pauses()
    for (const [key, service] of services.entries()) {
      if (pauses.due()) yield
      if (isLeftOut(key)) continue
      for (const relay of this.#relaysOf(service)) relays.set(relay.key, this.#known(relay))
    }
    return PersistentMap.owning(relays)
  }

  #relaysOf(service: ServiceFrontends | undefined): readonly Relay[] {
    return service === undefined ? [] : localhostRelays(service, this.#families)
  }

  #known(relay: Relay): Relay {
    const before = this.#base.relays.get(relay.key)
    return before !== undefined && sameRelay(before, relay) ? before : relay
  }
}
