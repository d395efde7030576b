import { type Octets, u32host } from '../../base/octets.ts'
import type { Element, ElementGroup } from '../../kernel/nft/state.ts'
import type { Backend, Frontend, PortFrontends, ServiceFrontends } from '../../model/frontend.ts'
import { externalChain, externalLocalChain, firewallChain, pickChain } from './chains.ts'
import {
  CHAIN_REJECT,
  CODE_DROP,
  CODE_REJECT,
  type FamilyLayout,
  ID_SHIFT,
  LOCAL_LIST,
  pairKey,
  portData,
  portKey,
} from './layout.ts'
import type { CodeDraft, IdDraft } from './numbering.ts'
import { assignSlots, type SlotTable, slotsOf } from './slots.ts'
import { stableIds } from './stable-id.ts'

export interface ElementContext {
  readonly layout: FamilyLayout
  readonly endpointComments: boolean
  readonly ids: IdDraft
  readonly codes: CodeDraft
}

/** Numbers are finite: a Service that finds none left stays out, and this says which kind it was. */
export interface OutOfNumbers {
  readonly reason: string
}

const NO_IDS_LEFT: OutOfNumbers = {
  reason: 'the table has no number left for another service port: 524287 are in use',
}
const NO_CODES_LEFT: OutOfNumbers = {
  reason: 'the table has no code left for another combination of endpoint counts: 4080 are in use',
}
/** nft keeps a comment's length in one byte. */
const COMMENT_MAX = 250

/** All elements of one table that serve one Service. Those it had `before` lend their slots. */
export function serviceElements(
  service: ServiceFrontends,
  context: ElementContext,
  before: ElementGroup | undefined,
): ElementGroup | OutOfNumbers {
  const { layout } = context
  const out: Element[] = []
  for (const ip of service.clusterIps) {
    if (ip.length === layout.addressLength)
      out.push({ set: 'cluster-ips', key: ip, data: undefined, comment: '' })
  }
  for (const port of service.ports) {
    if (port.family !== layout.model || port.frontends.length === 0) continue
    const id = context.ids.take(port.key)
    if (id === undefined) return NO_IDS_LEFT
    const comment =
      port.displayName.length <= COMMENT_MAX ? port.displayName : port.displayName.slice(0, COMMENT_MAX)
    const rendering: PortRendering = {
      port,
      base: id * 2 ** ID_SHIFT,
      comment,
      endpointComment: context.endpointComments ? comment : '',
      before:
        before === undefined
          ? undefined
          : slotsOf(before, port.affinityTimeoutS === 0 ? 'endpoints' : 'slots'),
    }
    if (!pushFrontends(out, rendering, context)) return NO_CODES_LEFT
    pushLists(out, rendering)
    pushRanges(out, rendering, layout)
  }
  // A copy takes the room that is needed and no more.
  return out.length === 0 ? NONE : out.slice()
}

const NONE: readonly never[] = []

interface PortRendering {
  readonly port: PortFrontends
  /** The id of the port, where V has it. */
  readonly base: number
  readonly comment: string
  readonly endpointComment: string
  readonly before: SlotTable | undefined
}

function pushFrontends(out: Element[], rendering: PortRendering, { codes }: ElementContext): boolean {
  const { port, base, comment } = rendering
  for (const frontend of port.frontends) {
    const chain = targetOf(frontend, port)
    const code = typeof chain === 'number' ? chain : codes.take(chain)
    if (code === undefined) return false
    const key = portKey(port.protocol, frontend.port)
    const data = u32host(base + code)
    if (frontend.ip === undefined) out.push({ set: 'nodeports', key, data, comment })
    else out.push({ set: 'frontends', key: frontend.ip + key, data, comment })
  }
  return true
}

/** The chain that serves a frontend, or its code where that is fixed. */
function targetOf(frontend: Frontend, port: PortFrontends): string | number {
  const target = unguardedTarget(frontend, port)
  if (frontend.sourceRanges === undefined || target === CODE_DROP) return target
  return firewallChain(target === CODE_REJECT ? CHAIN_REJECT : `${target}`)
}

function unguardedTarget({ route }: Frontend, port: PortFrontends): string | number {
  const { cluster, local, affinityTimeoutS } = port
  switch (route.kind) {
    case 'reject':
      return CODE_REJECT
    case 'drop':
      return CODE_DROP
    case 'internal': {
      const over = route.over === 'local' ? local : cluster
      if (over.length > 0) return pickChain(route.over === 'local', over.length, affinityTimeoutS)
      return route.over === 'local' ? CODE_DROP : CODE_REJECT
    }
    case 'external-cluster':
      return cluster.length === 0 ? CODE_REJECT : externalChain(cluster.length, affinityTimeoutS)
    case 'external-local':
      return externalLocalChain(cluster.length, local.length, affinityTimeoutS)
  }
}

function pushLists(out: Element[], rendering: PortRendering): void {
  const { port } = rendering
  let usesCluster = false
  let usesLocal = false
  for (const { route } of port.frontends) {
    if (route.kind === 'external-cluster') usesCluster = true
    else if (route.kind === 'external-local') usesCluster = usesLocal = true
    else if (route.kind !== 'internal') continue
    else if (route.over === 'local') usesLocal = true
    else usesCluster = true
  }
  const cluster = usesCluster ? port.cluster.map(endpointData) : NONE
  const local = usesLocal ? port.local.map(endpointData) : NONE
  if (port.affinityTimeoutS === 0) {
    pushSlots(out, { set: 'endpoints', values: cluster, bit: 0 }, rendering)
    pushSlots(out, { set: 'endpoints', values: local, bit: LOCAL_LIST }, rendering)
  } else pushAffine(out, [cluster, local], rendering)
}

function endpointData({ ip, port }: Backend): Octets {
  return ip + portData(port)
}

interface SlotRun {
  readonly set: 'endpoints' | 'slots'
  readonly values: readonly Octets[]
  /** Added to the port's base: which of its two lists. */
  readonly bit: number
}

function pushSlots(out: Element[], { set, values, bit }: SlotRun, rendering: PortRendering): void {
  if (values.length === 0) return
  const list = rendering.base + bit
  const comment = set === 'endpoints' ? rendering.endpointComment : ''
  const dealt = assignSlots(values, rendering.before?.get(list))
  for (let slot = 0; slot < dealt.length; slot++)
    out.push({ set, key: pairKey(list, slot), data: dealt[slot], comment })
}

/** Both lists get their ids from one numbering, so that a client keeps its endpoint whichever way it comes. */
function pushAffine(out: Element[], lists: readonly (readonly Octets[])[], rendering: PortRendering): void {
  const ids = stableIds([...new Set(lists.flat())].sort())
  const { base, endpointComment: comment } = rendering
  lists.forEach((values, i) => {
    const bit = i * LOCAL_LIST
    const numbers = values.map(value => ids.get(value) ?? 0)
    values.forEach((data, j) => {
      out.push({ set: 'endpoints', key: pairKey(base + bit, numbers[j] ?? 0), data, comment })
    })
    pushSlots(out, { set: 'slots', values: numbers.map(u32host), bit }, rendering)
  })
}

function pushRanges(out: Element[], { port, base }: PortRendering, layout: FamilyLayout): void {
  let keys: Set<Octets> | undefined
  for (const { sourceRanges } of port.frontends) {
    if (sourceRanges === undefined) continue
    keys ??= new Set()
    for (const { ip, bits } of sourceRanges) {
      if (ip.length === layout.addressLength) keys.add(u32host(base + bits) + ip)
    }
  }
  if (keys === undefined) return
  for (const key of keys) out.push({ set: 'ranges', key, data: undefined, comment: '' })
}
