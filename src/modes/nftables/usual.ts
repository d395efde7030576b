import { type Octets, u32host } from '../../base/octets.ts'
import type { Element, ElementGroup } from '../../kernel/nft/state.ts'
import type { PortFrontends, ServiceFrontends } from '../../model/frontend.ts'
import { commentOf } from '../common/element-group.ts'
import { portData, portKey } from '../common/octet-keys.ts'
import { pickChain } from './chains.ts'
import type { ElementContext } from './elements.ts'
import { ENDPOINTS, type EndpointsMap, listOfPort } from './layout.ts'
import type { TallyDraft } from './tally.ts'

/**
 * Gives the only port of a Service that has one ClusterIP, one port, and one frontend that balances over one
 * list without affinity. Most Services are like this.
 */
export function usualPort({ clusterIps, ports }: ServiceFrontends): PortFrontends | undefined {
  const port = ports[0]
  if (port === undefined || ports.length !== 1 || clusterIps.length !== 1) return undefined
  const { frontends, cluster } = port
  const frontend = frontends[0]
  if (frontend === undefined || frontends.length !== 1 || cluster.length === 0) return undefined
  const { route, ip, sourceRanges } = frontend
  const isPlain = route.kind === 'internal' && route.over === 'cluster' && port.affinityTimeoutS === 0
  return isPlain && ip === clusterIps[0] && sourceRanges === undefined ? port : undefined
}

/** A chain that lists of one length use. */
interface Chain {
  readonly code: number
  uses: number
}

/**
 * Makes the elements of new Services that have a usualPort, as ElementDraft does, but with straight-line
 * code. A first render makes most of its elements here, and ends before the JIT compiler has optimized much
 * of it.
 */
export class UsualDraft {
  readonly #context: ElementContext
  /** Chains by number of endpoints. */
  readonly #chains = new Map<number, Chain>()
  /** The result of u32host for slots from 0 on. */
  readonly #slots: Octets[] = []
  #services = 0
  readonly #endpoints = new Map<EndpointsMap, number>()

  constructor(context: ElementContext) {
    this.#context = context
  }

  /** Makes the elements of a port; undefined when no numbers are left. */
  make(port: PortFrontends): ElementGroup | undefined {
    const { cluster, frontends, protocol } = port
    const { length } = cluster
    const frontend = frontends[0]
    const id = this.#context.ids.take(port.key)
    const chain = this.#chains.get(length) ?? this.#chainFor(length)
    if (id === undefined || chain === undefined || frontend?.ip === undefined) return undefined
    const { ip } = frontend
    const slots = this.#slots
    while (slots.length < length) slots.push(u32host(slots.length))
    const comment = commentOf(port)
    const endpointComment = this.#context.endpointComments ? comment : ''
    const list = u32host(listOfPort(id))
    const set = ENDPOINTS[protocol]
    const group = new Array<Element>(2 + length)
    group[0] = { set: 'cluster-ips', key: ip, data: undefined, comment: '' }
    const data = u32host(listOfPort(id) + chain.code)
    group[1] = { set: 'frontends', key: ip + portKey(protocol, frontend.port), data, comment }
    let number = -1
    let octets = ''
    for (let slot = 0; slot < length; slot++) {
      const backend = cluster[slot]
      if (backend === undefined) break
      if (backend.port !== number) {
        number = backend.port
        octets = portData(number)
      }
      group[2 + slot] = {
        set,
        key: list + slots[slot],
        data: backend.ip + octets,
        comment: endpointComment,
      }
    }
    return group
  }

  /** Counts the elements of a port as used. */
  count({ cluster: { length }, protocol }: PortFrontends): void {
    const chain = this.#chains.get(length)
    if (chain !== undefined) chain.uses++
    this.#services++
    const map = ENDPOINTS[protocol]
    this.#endpoints.set(map, (this.#endpoints.get(map) ?? 0) + length)
  }

  /** Adds the counts to a tally. */
  countInto(tally: TallyDraft): void {
    tally.addElements('cluster-ips', this.#services)
    tally.addElements('frontends', this.#services)
    for (const [map, count] of this.#endpoints) tally.addElements(map, count)
    for (const { code, uses } of this.#chains.values()) tally.addCode(code, uses)
  }

  #chainFor(count: number): Chain | undefined {
    const code = this.#context.codes.take(pickChain(false, count, 0))
    if (code === undefined) return undefined
    const chain = { code, uses: 0 }
    this.#chains.set(count, chain)
    return chain
  }
}
