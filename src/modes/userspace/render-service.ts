import { formatIp, type Ip } from '../../base/ip.ts'
import type { Octets } from '../../base/octets.ts'
import { NF_DROP, NFT_GOTO } from '../../kernel/nft/constants.ts'
import type { Verdict } from '../../kernel/nft/expression.ts'
import type { Element } from '../../kernel/nft/state.ts'
import { objectText, printable, type Refusal } from '../../model/fields.ts'
import type { Frontend, PortFrontends, ServiceFrontends } from '../../model/frontend.ts'
import type { ListName } from '../common/relay/balancer.ts'
import type { Relay } from '../common/relay/relay.ts'
import { CHAIN_REJECT } from '../common/rules.ts'
import { commentOf, type FamilyLayout, portKey } from '../common/tables.ts'
import { LOCAL_SUFFIX, rangesSet } from './layout.ts'
import { type PlaceKey, symbolOf } from './state.ts'

/** The objects of one Service in one family. */
export interface ServiceElements {
  readonly elements: readonly Element[]
  readonly relays: readonly Relay[]
  readonly places: readonly PlaceKey[]
  readonly refusals: readonly Refusal[]
}

/** The address on which relays of the family listen; undefined when this node has none. */
type RelayAddress = Ip | undefined

export function serviceElements(
  service: ServiceFrontends,
  layout: FamilyLayout,
  address: RelayAddress,
): ServiceElements {
  const made = new Made(layout)
  for (const ip of service.clusterIps)
    if (ip.length === layout.addressLength)
      made.elements.push({ set: 'cluster-ips', key: ip, data: undefined, comment: '' })
  for (const port of service.ports) {
    if (port.family !== layout.model || port.frontends.length === 0) continue
    const refused = whyNot(port, address)
    if (refused !== undefined) made.refusals.push(refused)
    else if (address !== undefined) made.add(port, address)
  }
  return made
}

function whyNot(port: PortFrontends, address: RelayAddress): Refusal | undefined {
  const { service, protocol, family, displayName } = port
  const object = objectText('Service', service)
  if (protocol === 'SCTP') {
    const reason = 'userspace mode relays only TCP and UDP; use another mode for SCTP'
    return { object, field: 'spec.ports.protocol', value: printable(`SCTP of ${displayName}`), reason }
  }
  if (address !== undefined) return undefined
  const reason = `this node has no ${family} address that userspace mode could listen on`
  return { object, field: 'spec.ipFamilies', value: family, reason }
}

class Made implements ServiceElements {
  readonly elements: Element[] = []
  readonly relays: Relay[] = []
  readonly places: PlaceKey[] = []
  readonly refusals: Refusal[] = []
  readonly #layout: FamilyLayout

  constructor(layout: FamilyLayout) {
    this.#layout = layout
  }

  add(port: PortFrontends, address: Ip): void {
    if (port.protocol === 'SCTP') return
    const lists = listsOf(port)
    const relay: Relay = {
      key: `${port.key} ${formatIp(address)}`,
      displayName: port.displayName,
      service: port.service,
      protocol: port.protocol,
      address,
      lists,
      balance: { affinityTimeoutS: port.affinityTimeoutS, cluster: port.cluster, local: port.local },
    }
    for (const frontend of port.frontends) this.#addFrontend(frontend, port, relay)
    if (lists.length === 0) return
    this.relays.push(relay)
    for (const list of lists) {
      const comment = commentFor(port, list)
      this.elements.push({ set: 'listeners', key: symbolOf(relay, list), data: undefined, comment })
    }
  }

  #addFrontend(frontend: Frontend, port: PortFrontends, relay: Relay): void {
    const { ip } = frontend
    const number = portKey(port.protocol, frontend.port)
    const key = ip === undefined ? number : ip + number
    this.places.push(key)
    const { inside, everyone } = targetsOf(frontend, port)
    const isNodePort = ip === undefined
    const redirect = (set: string, list: ListName) =>
      this.elements.push({ set, key, data: symbolOf(relay, list), comment: commentFor(port, list) })
    if (inside !== undefined) redirect(isNodePort ? 'nodeports-inside' : 'inside', inside)
    if (everyone === 'cluster' || everyone === 'local')
      redirect(isNodePort ? 'nodeports' : 'frontends', everyone)
    else
      this.elements.push({
        set: isNodePort ? 'nodeport-verdicts' : 'verdicts',
        key,
        data: everyone === 'drop' ? DROP : REJECT,
        comment: commentOf(port),
      })
    if (frontend.sourceRanges !== undefined && !isNodePort) this.#guard(frontend, key, port)
  }

  #guard({ sourceRanges = [] }: Frontend, key: Octets, port: PortFrontends): void {
    const comment = commentOf(port)
    this.elements.push({ set: 'guarded', key, data: undefined, comment })
    for (const { ip, bits } of sourceRanges)
      if (ip.length === this.#layout.addressLength)
        this.elements.push({ set: rangesSet(bits), key: key + ip, data: undefined, comment: '' })
  }
}

const REJECT: Verdict = { code: NFT_GOTO, chain: CHAIN_REJECT }
const DROP: Verdict = { code: NF_DROP, chain: undefined }

/** The listeners of a frontend: for pods and processes of this node, if it differs, and for all clients. */
interface Targets {
  readonly inside: ListName | undefined
  readonly everyone: ListName | 'reject' | 'drop'
}

function targetsOf({ route }: Frontend, { cluster, local }: PortFrontends): Targets {
  const all = (everyone: Targets['everyone']): Targets => ({ inside: undefined, everyone })
  switch (route.kind) {
    case 'reject':
    case 'drop':
      return all(route.kind)
    case 'internal':
      if (route.over === 'local') return all(local.length === 0 ? 'drop' : 'local')
      return all(cluster.length === 0 ? 'reject' : 'cluster')
    case 'external-cluster':
      return all(cluster.length === 0 ? 'reject' : 'cluster')
    case 'external-local':
      return {
        inside: cluster.length === 0 ? undefined : 'cluster',
        everyone: local.length === 0 ? 'drop' : 'local',
      }
  }
}

/** Gives the lists that frontends of a port lead to. */
function listsOf(port: PortFrontends): readonly ListName[] {
  let [hasCluster, hasLocal] = [false, false]
  for (const frontend of port.frontends) {
    const { inside, everyone } = targetsOf(frontend, port)
    hasCluster ||= inside === 'cluster' || everyone === 'cluster'
    hasLocal ||= everyone === 'local'
  }
  return hasCluster ? (hasLocal ? BOTH : CLUSTER) : hasLocal ? LOCAL : NONE
}

const NONE: readonly ListName[] = []
const CLUSTER: readonly ListName[] = ['cluster']
const LOCAL: readonly ListName[] = ['local']
const BOTH: readonly ListName[] = ['cluster', 'local']

function commentFor(port: PortFrontends, list: ListName): string {
  return list === 'local' ? commentOf(port) + LOCAL_SUFFIX : commentOf(port)
}
