import { u32host } from '../../base/octets.ts'
import { IPS_DST_NAT, NF_INET_LOCAL_IN, NFT_CT_STATUS, NFT_RETURN } from '../../kernel/nft/constants.ts'
import type { Chain, Rule } from '../../kernel/nft/state.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import {
  CHAIN_FIREWALL,
  CHAIN_POSTROUTING,
  CHAIN_REJECT,
  CHAIN_SERVICES,
  compare,
  contextKey,
  destinationAddress,
  dropCounted,
  type Expressions,
  end,
  goTo,
  hookChains,
  insideRules,
  jumpTo,
  mapped,
  maskBytes,
  maskNumber,
  matches,
  noLocalChain,
  portOfPacket,
  prefixMask,
  rejectChain,
  rule,
  sourceAddress,
  type TableContext,
  tableContext,
  toNodePortAddress,
  translate,
  unallocatedChains,
  WORK,
} from '../common/rules.ts'
import type { FamilyLayout } from '../common/tables.ts'
import type { UserspaceOptions } from './settings.ts'
import { CHAIN_INPUT, CHAIN_NODE_PORTS, type RedirectMap, rangesSet } from './state.ts'

interface RuleInputs extends TableContext {
  readonly natPriority: number
  readonly prefixLengths: readonly number[]
}

/** Every connection reaches its endpoint from this process, so there is nothing to masquerade. */
const NO_MASQUERADE = { masqueradeAll: false, masqueradeBit: 0 } as const

export function ruleInputs(
  layout: FamilyLayout,
  { natPriority, detector }: UserspaceOptions,
  {
    frontends,
    prefixLengths,
  }: { readonly frontends: FrontendTable; readonly prefixLengths: readonly number[] },
): RuleInputs {
  const context = tableContext(layout, { ...NO_MASQUERADE, detector }, frontends)
  return { ...context, masqueradeMark: 0, natPriority, prefixLengths }
}

/** Gives equal keys for inputs that give equal chains and sets. */
export function ruleInputsKey(inputs: RuleInputs): string {
  return JSON.stringify([...contextKey(inputs), inputs.prefixLengths])
}

/** Makes all chains of one table. Of the Services, only the lengths of source ranges change them. */
export function chainsOf(inputs: RuleInputs): readonly Chain[] {
  const plain = (name: string, rules: readonly Rule[]): Chain => ({ name, hook: undefined, rules })
  return [
    ...hookChains([], inputs.natPriority).filter(({ name }) => name !== CHAIN_POSTROUTING),
    ...unallocatedChains(inputs),
    inputChain(inputs),
    plain(CHAIN_SERVICES, servicesRules(inputs)),
    plain(CHAIN_NODE_PORTS, placeRules(inputs, NODE_PORTS)),
    rejectChain(inputs.layout),
    noLocalChain,
    plain(CHAIN_FIREWALL, firewallRules(inputs)),
  ]
}

/** The maps of a lookup by address, protocol and port, or without the address. */
interface Places {
  readonly hasAddress: boolean
  readonly verdicts: string
  readonly inside: RedirectMap
  readonly redirects: RedirectMap
}

const ADDRESSES: Places = {
  hasAddress: true,
  verdicts: 'verdicts',
  inside: 'inside',
  redirects: 'frontends',
}
const NODE_PORTS: Places = {
  hasAddress: false,
  verdicts: 'nodeport-verdicts',
  inside: 'nodeports-inside',
  redirects: 'nodeports',
}

function servicesRules(inputs: RuleInputs): readonly Rule[] {
  const { layout } = inputs
  return [
    rule([...placeOfPacket(layout, true), matches('guarded', KEY), jumpTo(CHAIN_FIREWALL)]),
    ...placeRules(inputs, ADDRESSES),
    rule([...toNodePortAddress(inputs), jumpTo(CHAIN_NODE_PORTS)]),
    rule([destinationAddress(layout, WORK), matches('cluster-ips'), goTo(CHAIN_REJECT)], 'no such port'),
  ]
}

/** Makes the rules of frontends. Pods and processes of this node are inside: policy Local sends them everywhere. */
function placeRules(inputs: RuleInputs, places: Places): readonly Rule[] {
  const { layout } = inputs
  const key = placeOfPacket(layout, places.hasAddress)
  const to = (map: RedirectMap): Expressions => [...key, mapped(map, KEY, WORK), translate(layout, WORK)]
  return [
    ...insideRules(inputs, to(places.inside), to(places.inside)),
    rule([...key, mapped(places.verdicts, KEY, 'verdict')]),
    rule(to(places.redirects)),
  ]
}

const KEY = 0

function placeOfPacket(layout: FamilyLayout, hasAddress: boolean): Expressions {
  const ports = portOfPacket(KEY + (hasAddress ? layout.addressRegs : 0))
  return hasAddress ? [destinationAddress(layout, KEY), ...ports] : ports
}

function firewallRules({ layout, prefixLengths }: RuleInputs): readonly Rule[] {
  const source = KEY + layout.addressRegs + 2
  const rules = prefixLengths.map(bits => {
    const isWhole = bits === layout.addressLength * 8
    const masked = isWhole ? [] : [maskBytes(source, prefixMask(bits, layout.addressLength))]
    const key = [...placeOfPacket(layout, true), sourceAddress(layout, source), ...masked]
    return rule([...key, matches(rangesSet(bits), KEY), end(NFT_RETURN)])
  })
  return [...rules, rule(dropCounted, 'source not in loadBalancerSourceRanges')]
}

/** Rejects packets that reach a listener without a redirect: no rule has checked whether they are allowed. */
function inputChain({ layout }: RuleInputs): Chain {
  const notRedirected: Expressions = [
    { kind: 'ct', key: NFT_CT_STATUS, dreg: WORK },
    maskNumber(WORK, IPS_DST_NAT),
    compare('eq', WORK, u32host(0)),
  ]
  const toListener = [...placeOfPacket(layout, true), matches('listeners', KEY)]
  return {
    name: CHAIN_INPUT,
    hook: { type: 'filter', hooknum: NF_INET_LOCAL_IN, priority: 0 },
    rules: [rule([...toListener, ...notRedirected, goTo(CHAIN_REJECT)], 'not redirected')],
  }
}
