import { eventually } from '../support/patience.ts'
import type { Namespaces } from './namespaces.ts'
import type { NodePlan, Site, Subnets } from './site.ts'

const BRIDGE = 'br0'

/**
 * The network between the nodes: a bridge in the cluster's own network namespace, a pair of interfaces for each node,
 * and routes to the pods of every other node. Nothing leads out of it.
 */
export function connectNodes(site: Site, namespaces: Namespaces): void {
  ip(namespaces, controlPlaneCommands(site))
  setSysctls(namespaces, ROUTER_SYSCTLS)
  for (const node of site.nodes) connectNode(site, node, namespaces)
}

export function connectNode(site: Site, node: NodePlan, namespaces: Namespaces): void {
  namespaces.must({ file: 'ip', args: ['netns', 'add', node.name] })
  ip(namespaces, bridgeCommands(site, node))
  ip(namespaces, nodeCommands(site, node), ['-netns', node.name])
  setSysctls(namespaces, NODE_SYSCTLS, node.name)
}

/** One node learns where the pods of another one are. */
export function routeToPods(
  { subnets }: Site,
  { from, to }: { readonly from: NodePlan; readonly to: NodePlan },
  namespaces: Namespaces,
): void {
  ip(namespaces, podRoutes(subnets, to), ['-netns', from.name])
}

/** Nothing reaches the node, and it reaches nothing. */
export function disconnectNode({ name }: NodePlan, namespaces: Namespaces): void {
  namespaces.must({ file: 'ip', args: ['link', 'set', name, 'down'] })
}

/** A network namespace that has nothing of the node's former one: no rules, no connections. */
export async function reconnectNode(site: Site, node: NodePlan, namespaces: Namespaces): Promise<void> {
  namespaces.must({ file: 'ip', args: ['netns', 'delete', node.name] })
  // The kernel removes the old pair of interfaces a moment later, or at once when its peer goes.
  namespaces.run({ file: 'ip', args: ['link', 'delete', node.name] })
  await eventually(() => namespaces.run({ file: 'ip', args: ['link', 'show', node.name] }).status !== 0)
  connectNode(site, node, namespaces)
}

function ip(namespaces: Namespaces, commands: readonly string[], options: readonly string[] = []): void {
  namespaces.must({ file: 'ip', args: [...options, '-batch', '-'] }, { input: `${commands.join('\n')}\n` })
}

const FORWARDING = {
  'net/ipv4/ip_forward': 1,
  'net/ipv6/conf/all/forwarding': 1,
  'net/ipv4/conf/all/rp_filter': 0,
}
/** Connections to a load balancer are spread over the nodes by their ports. */
const ROUTER_SYSCTLS = {
  ...FORWARDING,
  'net/ipv4/fib_multipath_hash_policy': 1,
  'net/ipv6/fib_multipath_hash_policy': 1,
}
/** Packets between pods of one bridge pass the rules of the proxy, as in every cluster. */
const NODE_SYSCTLS = {
  ...FORWARDING,
  'net/ipv4/conf/default/rp_filter': 0,
  'net/bridge/bridge-nf-call-iptables': 1,
  'net/bridge/bridge-nf-call-ip6tables': 1,
}

function setSysctls(namespaces: Namespaces, values: Readonly<Record<string, number>>, netns?: string): void {
  const script = Object.entries(values)
    .map(([name, value]) => `echo ${value} > /proc/sys/${name}`)
    .join('; ')
  const shell = ['sh', '-ec', script]
  namespaces.must(
    netns === undefined
      ? { file: 'sh', args: shell.slice(1) }
      : { file: 'ip', args: ['netns', 'exec', netns, ...shell] },
  )
}

function controlPlaneCommands({ subnets }: Site): readonly string[] {
  return [
    'link set lo up',
    `link add ${BRIDGE} type bridge`,
    `link set ${BRIDGE} up`,
    ...subnets.flatMap(each => [
      `address add ${each.gateway}/${each.nodeBits} dev ${BRIDGE}${noDad(each)}`,
      `address add ${each.client}/${each.hostBits} dev lo${noDad(each)}`,
    ]),
  ]
}

function bridgeCommands({ subnets }: Site, node: NodePlan): readonly string[] {
  return [
    `link add ${node.name} type veth peer name eth0 netns ${node.name}`,
    `link set ${node.name} master ${BRIDGE} up`,
    ...podRoutes(subnets, node),
  ]
}

function nodeCommands({ subnets, nodes }: Site, node: NodePlan): readonly string[] {
  return [
    'link set lo up',
    // A node that starts again has the network card that its neighbors know.
    `link set eth0 address 02:00:00:00:00:${node.index.toString(16).padStart(2, '0')}`,
    'link set eth0 up',
    ...subnets.flatMap(each => [
      `address add ${each.node(node.index)}/${each.nodeBits} dev eth0${noDad(each)}`,
      `route add default via ${each.gateway}`,
    ]),
    ...nodes.filter(other => other !== node).flatMap(other => podRoutes(subnets, other)),
  ]
}

function podRoutes(subnets: readonly Subnets[], { index }: NodePlan): readonly string[] {
  return subnets.map(each => `route replace ${each.podsOf(index)} via ${each.node(index)}`)
}

/** An address of IPv6 can be used only after a second otherwise. */
function noDad({ family }: Subnets): string {
  return family === 'ipv6' ? ' nodad' : ''
}
