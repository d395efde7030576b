import { PROTOCOL_NUMBERS } from '../../base/ip-packet.ts'
import * as nft from '../../kernel/nft/constants.ts'
import type { Chain, Expression, Rule } from '../../kernel/nft/state.ts'
import {
  askMasquerade,
  CHAIN_FIREWALL,
  CHAIN_NO_LOCAL,
  CHAIN_POSTROUTING,
  CHAIN_REJECT,
  CHAIN_SERVICES,
  compare,
  destinationAddress,
  dropCounted,
  type Expressions,
  end,
  goTo,
  hookChains,
  insideRules,
  jumpTo,
  mapped,
  maskNumber,
  masquerade,
  masqueradeMarked,
  matches,
  natChain,
  noLocalChain,
  offClusterRules,
  portOfPacket,
  readMark,
  rejectChain,
  rule,
  type TableContext,
  translate,
  unallocatedChains,
  WORK,
  writeMark,
} from '../common/rules.ts'
import { PROTOCOLS } from '../common/tables.ts'
import {
  CHAIN_CLUSTER_LIST,
  CHAIN_EXTERNAL,
  CHAIN_EXTERNAL_LOCAL,
  CHAIN_NODE_PORTS,
  type NftSetName,
  NODE_PORT_SETS,
  type SetStem,
  setName,
} from './layout.ts'
import type { RuleWriter } from './settings.ts'

/**
 * Makes all chains of one of our tables. Beside kube-proxy's chains (chains.ts) the table has only what these
 * cannot express, or apply too late: source ranges must be checked before verdicts and redirects.
 */
export function rulesOf(writer: RuleWriter, inputs: TableContext): readonly Chain[] {
  const { layout } = inputs
  const plain = (name: string, rules: readonly Rule[]): Chain => ({ name, hook: undefined, rules })
  const isWhole = writer === 'nftables'
  return [
    ...(isWhole ? hookChains([masqueradeMarked(inputs), hairpinRule(inputs)]) : earlyChains(inputs)),
    ...unallocatedChains(inputs, [
      // The set of bound addresses does not contain an address that another device has.
      rule([inSet(inputs, 'CLUSTER-IP', 'dst', 'dst'), accept], 'IPVS has the endpoints'),
      rule([inSet(inputs, 'IPVS-IPS', 'dst'), accept], 'a bound address'),
    ]),
    plain(CHAIN_SERVICES, isWhole ? servicesRules(inputs) : redirectRules(inputs)),
    rejectChain(layout),
    noLocalChain,
    plain(CHAIN_FIREWALL, firewallRules(inputs)),
    plain(CHAIN_NODE_PORTS, nodePortRules(inputs)),
    plain(CHAIN_EXTERNAL, [
      rule(askMasquerade(inputs)),
      rule(toList(inputs, 'cluster-lists')),
      rule([accept], 'IPVS has the endpoints'),
    ]),
    plain(CHAIN_EXTERNAL_LOCAL, externalLocalRules(inputs)),
    plain(CHAIN_CLUSTER_LIST, [rule(toList(inputs, 'cluster-lists')), rule([accept])]),
  ]
}

/**
 * Makes chains in front of the nat chains of iptables. A packet that ours translate skips theirs, so ours
 * also mark it. Packets that ours let pass are marked by theirs. The chains of iptables masquerade hairpin
 * connections and leave the mark set, so the postrouting chain here clears it.
 */
function earlyChains(inputs: TableContext): readonly Chain[] {
  const unmark = [readMark(WORK), maskNumber(WORK, ~inputs.masqueradeMark >>> 0), writeMark(WORK)]
  const hairpin = inSet(inputs, 'LOOP-BACK', 'dst', 'dst', 'src')
  return [
    ...hookChains([]).filter(({ name }) => name !== CHAIN_POSTROUTING),
    natChain(CHAIN_POSTROUTING, nft.NF_INET_POST_ROUTING, nft.NF_IP_PRI_NAT_SRC - 1, [
      rule([hairpin, ...unmark], 'masqueraded without it'),
    ]),
  ]
}

const accept = end(nft.NF_ACCEPT)
const giveBack = end(nft.NFT_RETURN)

type Side = 'src' | 'dst'

function inSet({ layout }: TableContext, stem: SetStem, ...dimensions: readonly Side[]): Expression {
  return { kind: 'ipset', set: setName(stem, layout.model), dimensions, inverted: false }
}

function servicesRules(inputs: TableContext): readonly Rule[] {
  const clusterIp = inSet(inputs, 'CLUSTER-IP', 'dst', 'dst')
  return [
    ...offClusterRules(inputs, [clusterIp]),
    // The node sends to a bound address from that same address, to which no endpoint can reply.
    rule([clusterIp, inSet(inputs, 'IPVS-IPS', 'src'), ...askMasquerade(inputs)], "the node's own"),
    ...frontendRules(inputs),
    rule([clusterIp, accept], 'IPVS has the endpoints'),
    rule([inSet(inputs, 'IPVS-IPS', 'dst'), goTo(CHAIN_REJECT)], 'no such port'),
  ]
}

function frontendRules(inputs: TableContext): readonly Rule[] {
  const at = (stem: SetStem) => inSet(inputs, stem, 'dst', 'dst')
  return [
    rule([at('LOAD-BALANCER-FW'), jumpTo(CHAIN_FIREWALL)]),
    rule([...keyOfPacket(inputs), mapped('verdicts', WORK, 'verdict')]),
    rule([at('EXTERNAL-IP-LOCAL'), goTo(CHAIN_EXTERNAL_LOCAL)]),
    rule([at('LOAD-BALANCER-LOCAL'), goTo(CHAIN_EXTERNAL_LOCAL)]),
    rule([at('EXTERNAL-IP'), goTo(CHAIN_EXTERNAL)]),
    rule([at('LOAD-BALANCER'), goTo(CHAIN_EXTERNAL)]),
    rule([...keyOfPacket(inputs), matches('health-checks'), accept]),
    rule([destinationAddress(inputs.layout, WORK), matches('nodeport-ips'), jumpTo(CHAIN_NODE_PORTS)]),
  ]
}

/** Makes the rules beside kube-proxy's chains, which handle the bound addresses. */
function redirectRules(inputs: TableContext): readonly Rule[] {
  return [
    ...frontendRules(inputs),
    rule([inSet(inputs, 'CLUSTER-IP', 'dst', 'dst'), accept], 'IPVS has the endpoints'),
    rule([inSet(inputs, 'IPVS-IPS', 'dst'), accept], 'KUBE-IPVS-FILTER knows the ports'),
  ]
}

function firewallRules(inputs: TableContext): readonly Rule[] {
  const from = (stem: SetStem) => rule([inSet(inputs, stem, 'dst', 'dst', 'src'), giveBack])
  return [
    from('LOAD-BALANCER-SOURCE-CIDR'),
    from('LOAD-BALANCER-SOURCE-IP'),
    rule(dropCounted, 'source not in loadBalancerSourceRanges'),
  ]
}

/** Makes the rules of node ports. A bitmap of ports has no protocols, so the rule matches the protocol. */
function nodePortRules(inputs: TableContext): readonly Rule[] {
  return PROTOCOLS.flatMap(protocol => {
    const sides: readonly Side[] = protocol === 'SCTP' ? ['dst', 'dst'] : ['dst']
    const of = (stem: SetStem, chain: string) =>
      rule([
        { kind: 'meta', key: nft.NFT_META_L4PROTO, dreg: WORK },
        compare('eq', WORK, String.fromCharCode(PROTOCOL_NUMBERS[protocol])),
        inSet(inputs, stem, ...sides),
        goTo(chain),
      ])
    const { all, local } = NODE_PORT_SETS[protocol]
    return [of(local, CHAIN_EXTERNAL_LOCAL), of(all, CHAIN_EXTERNAL)]
  })
}

/** Makes the rules of policy Local. Pods and processes of this node are inside: they reach endpoints everywhere. */
function externalLocalRules(inputs: TableContext): readonly Rule[] {
  const inside = goTo(CHAIN_CLUSTER_LIST)
  return [
    ...insideRules(inputs, [inside], [...askMasquerade(inputs), inside]),
    rule([...keyOfPacket(inputs), matches('no-local'), goTo(CHAIN_NO_LOCAL)], 'no endpoint on this node'),
    rule(toList(inputs, 'local-lists')),
    rule([accept], 'IPVS has the endpoints'),
  ]
}

/** Loads destination, protocol and port of the packet in the format of our sets' keys. */
function keyOfPacket({ layout }: TableContext): Expressions {
  return [destinationAddress(layout, WORK), ...portOfPacket(WORK + layout.addressRegs)]
}

const TARGET = 0

/** Redirects the packet to the virtual server that has the list for its destination, if that is another one. */
function toList(inputs: TableContext, map: NftSetName): Expressions {
  return [...keyOfPacket(inputs), mapped(map, WORK, TARGET), translate(inputs.layout, TARGET)]
}

function hairpinRule(inputs: TableContext): Rule {
  return rule([inSet(inputs, 'LOOP-BACK', 'dst', 'dst', 'src'), masquerade], 'endpoint to itself')
}

/** Gives equal keys for equal rules. */
export function chainKey({ hook, rules }: Chain): string {
  return JSON.stringify([hook ?? null, rules])
}
