import { execFileSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { assert } from '../../../src/base/errors.ts'
import { NODE_ADDRESSES, POD_GATEWAYS } from './address.ts'
import { freshNetns } from './netns.ts'
import { PacketPipe } from './pipe.ts'

/**
 *     outside ── e0 ═══ ext0 ── NODE ── pod0 ═══ e0 ── pods
 *
 * The node is the network namespace of this process, made anew: what programs its rules is tested in it. `outside` is
 * everything beyond the node's default gateway; `pods` are all of 10.0.0.0/8 and fd00:10::/64, on this node or not.
 */
export interface Topology {
  readonly outside: PacketPipe
  readonly pods: PacketPipe
  readonly node: PacketPipe
}

/** A packet that arrived somewhere untranslated or not, with the place. */
type Receive = (place: keyof Topology, packet: Buffer) => void

const OUTSIDE_PEERS = ['192.168.0.1', '2001:db8::1']
const POD_PEERS = ['10.255.255.253', 'fd00:10::fffd']

/** `alsoLocal` are further addresses of the node. Everything ends with closeTopology. */
export async function openTopology(alsoLocal: readonly string[], receive: Receive): Promise<Topology> {
  freshNetns()
  setSysctls()
  ip(['link set lo up'])
  const [outside, pods, node] = await Promise.all([
    PacketPipe.start('namespace', packet => receive('outside', packet)),
    PacketPipe.start('namespace', packet => receive('pods', packet)),
    PacketPipe.start('node', packet => receive('node', packet)),
  ])
  const topology = { outside, pods, node }
  try {
    connect(topology, alsoLocal)
    // Whoever does not listen yet misses what the others send.
    await Promise.all([outside.sync(), pods.sync(), node.sync()])
  } catch (error) {
    await closeTopology(topology)
    throw error
  }
  return topology
}

function connect({ outside, pods }: Topology, alsoLocal: readonly string[]): void {
  link('ext0', outside)
  link('pod0', pods)
  ip([
    ...[...NODE_ADDRESSES, ...alsoLocal].map(
      address => `addr add ${host(address)} dev ext0${noDad(address)}`,
    ),
    ...POD_GATEWAYS.map(address => `addr add ${host(address)} dev pod0${noDad(address)}`),
    ...OUTSIDE_PEERS.map(peer => `route add default via ${peer} dev ext0 onlink`),
    `route add 10.0.0.0/8 via ${POD_PEERS[0]} dev pod0 onlink src ${POD_GATEWAYS[0]}`,
    `route add fd00:10::/64 via ${POD_PEERS[1]} dev pod0 onlink src ${POD_GATEWAYS[1]}`,
  ])
}

export async function closeTopology(topology: Topology): Promise<void> {
  await Promise.all([topology.outside.close(), topology.pods.close(), topology.node.close()])
}

/** Joins the node's interface `name` with e0 of a namespace, with fixed neighbors: nothing asks for link addresses. */
function link(name: 'ext0' | 'pod0', peer: PacketPipe): void {
  ip([`link add ${name} type veth peer name e0 netns ${peer.pid}`, `link set ${name} up`])
  inNamespace(peer.pid, ['ip', 'link', 'set', 'lo', 'up'])
  inNamespace(peer.pid, ['ip', 'link', 'set', 'e0', 'up'])
  const near = linkAddress(execFileSync('ip', ['-j', 'link', 'show', 'dev', name], { encoding: 'utf8' }))
  const far = linkAddress(inNamespace(peer.pid, ['ip', '-j', 'link', 'show', 'dev', 'e0']))
  const neighbors = name === 'ext0' ? OUTSIDE_PEERS : POD_PEERS
  ip(neighbors.map(address => `neigh replace ${address} lladdr ${far} dev ${name} nud permanent`))
  peer.open('e0', near)
}

function linkAddress(json: string): string {
  const address = /"address":"([0-9a-f:]{17})"/.exec(json)?.[1]
  assert(address !== undefined, `no link address in ${json}`)
  return address
}

function host(address: string): string {
  return address.includes(':') ? `${address}/128` : `${address}/32`
}

function noDad(address: string): string {
  return address.includes(':') ? ' nodad' : ''
}

/** How packets of another namespace reach the node: on-link gateways that exist in its neighbor table only. */
export function peerGateways(
  pid: number,
): ReadonlyArray<{ readonly address: string; readonly link: string }> {
  const peerIndex = /"link_index":(\d+)/.exec(
    inNamespace(pid, ['ip', '-j', 'link', 'show', 'dev', 'e0']),
  )?.[1]
  const links = execFileSync('ip', ['-j', 'link'], { encoding: 'utf8' })
  const near = new RegExp(`"ifindex":${peerIndex},.*?"address":"([0-9a-f:]{17})"`).exec(links)?.[1]
  assert(near !== undefined, `no link address of interface ${peerIndex} in ${links}`)
  return ['169.254.1.1', 'fe80::1'].map(address => ({ address, link: near }))
}

/** Runs lines of iproute2 in the node's namespace, in one process. */
export function ip(lines: readonly string[]): void {
  execFileSync('ip', ['-batch', '-'], { input: `${lines.join('\n')}\n`, stdio: ['pipe', 'ignore', 'pipe'] })
}

/** Runs a command in the network namespace of a process; gives its output. */
export function inNamespace(pid: number, command: readonly string[]): string {
  return execFileSync('nsenter', ['-t', String(pid), '-n', ...command], {
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'pipe'],
  })
}

/** /proc/sys/net shows the namespace of the thread that opens it. */
function setSysctls(): void {
  const values: ReadonlyArray<readonly [string, string]> = [
    ['ipv4/conf/all/rp_filter', '0'],
    ['ipv4/conf/default/rp_filter', '0'],
    ['ipv4/conf/all/send_redirects', '0'],
    ['ipv4/conf/default/send_redirects', '0'],
    ['ipv6/conf/all/accept_dad', '0'],
    ['ipv6/conf/default/accept_dad', '0'],
    ['ipv4/ip_forward', '1'],
    ['ipv6/conf/all/forwarding', '1'],
    // No ICMP error is rate-limited, neither per peer nor globally: every refused probe must be answered.
    ['ipv4/icmp_ratelimit', '0'],
    ['ipv4/icmp_ratemask', '0'],
    ['ipv6/icmp/ratelimit', '0'],
    ['ipv6/icmp/ratemask', '127'],
  ]
  for (const [path, value] of values) writeFileSync(`/proc/sys/net/${path}`, value)
}
