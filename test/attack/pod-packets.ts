import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { expect, type TestContext } from 'vitest'
import { Cluster, HEALTH_PORT, METRICS_PORT } from '../faults/cluster.ts'
import { createRandom } from '../support/apiserver/random.ts'
import type { Daemon } from '../support/daemon.ts'
import type { Flow, Outcome } from '../support/lab/lab.ts'
import { balanced, serviceOf, sliceOf } from '../support/objects.ts'
import { eventually } from '../support/patience.ts'
import { expectHeld, many, SEED, Tally } from './attack.ts'

/*
 * A pod that was taken over, and a host beside the node: packets with any source and any destination.
 */

const CLUSTER_IP = '172.30.1.1'
const GUARDED = '198.51.100.7'
const NODE_PORT = 30_080
const HEALTH_CHECK_PORT = 30_100
const ENDPOINT = '10.180.1.1'
const NODE = '192.168.0.2'
/** Closed on the node: what arrives there is answered with a reset. */
const CLOSED = 10_250
const FLOWS = many(40, 2_000)

async function open(cluster: Cluster, args: readonly string[]): Promise<Daemon> {
  const ports = [{ name: 'http', port: 80, protocol: 'TCP', nodePort: NODE_PORT }]
  const guarded = {
    ports,
    externalTrafficPolicy: 'Local',
    healthCheckNodePort: HEALTH_CHECK_PORT,
    loadBalancerSourceRanges: ['203.0.113.0/24'],
  }
  cluster.put(
    serviceOf('web', CLUSTER_IP, ...balanced(guarded, GUARDED)),
    sliceOf('web', [{ addresses: [ENDPOINT], conditions: {}, nodeName: 'test-node' }]),
  )
  return await cluster.running({ args })
}

/** What came of packets: the verdict, with the place where they arrived. */
async function fates({ lab }: Cluster, flows: readonly Flow[]): Promise<readonly string[]> {
  const outcomes = await lab.trace(flows, { tries: 2 })
  return outcomes.map(({ verdict, endpoints }: Outcome) =>
    verdict === 'DNAT' ? [...endpoints.keys()].join() : verdict,
  )
}

function tcp(from: Flow['from'], source: string, destination: string, port: number): Flow {
  return { from, source, protocol: 'TCP', destination, port }
}

const LOOPBACK = ['127.0.0.1', '127.8.9.10'] as const

/** Packets that must reach nobody, in every mode. */
const MARTIANS: readonly Flow[] = [
  // The node's own address, or a loopback one, as the source.
  tcp('pod', NODE, CLUSTER_IP, 80),
  tcp('outside', NODE, CLUSTER_IP, 80),
  tcp('pod', '127.0.0.1', CLUSTER_IP, 80),
  // Loopback as the destination: our metrics, a closed port (CVE-2020-8558).
  ...(['pod', 'outside'] as const).flatMap(from =>
    [METRICS_PORT, CLOSED].map(port => tcp(from, fair(from), '127.0.0.1', port)),
  ),
]

/** What the kernel lets in with route_localnet=1, which kube-proxy sets as well: docs/threat-model.md. */
function isLetIn({ source, destination, port }: Flow): boolean {
  const isLoopback = (address: string) => address.startsWith('127.')
  return isLoopback(source) || (isLoopback(destination) && port === NODE_PORT)
}

function fair(from: Flow['from']): string {
  return from === 'pod' ? '10.180.9.9' : '203.0.113.9'
}

/** Who may not, does not come in by another way. */
const guards = (otherPort: PodMode['otherPort']): readonly (readonly [Flow, string])[] => [
  [tcp('outside', '203.0.113.9', GUARDED, 80), `${ENDPOINT}:8080`],
  [tcp('outside', '8.8.8.8', GUARDED, 80), 'DROP'],
  [tcp('outside', '8.8.8.8', GUARDED, 81), otherPort],
  // The number of the node port at the address of the load balancer.
  [tcp('outside', '8.8.8.8', GUARDED, NODE_PORT), otherPort],
]

/** What docs/threat-model.md calls the network's business: addresses that are not the sender's own. */
const spoofed = ({ isBound }: PodMode): readonly (readonly [Flow, string])[] => [
  [tcp('pod', '203.0.113.9', GUARDED, 80), `${ENDPOINT}:8080`],
  // Where service addresses are bound to the node, they are martian as sources.
  [tcp('pod', CLUSTER_IP, CLUSTER_IP, 80), isBound ? 'DROP' : `${ENDPOINT}:8080`],
]

/** Where a process listens with TCP over IPv4. */
function listenersOf(pid: number): readonly string[] {
  const lines = execFileSync('ss', ['-Htlnp4'], { encoding: 'utf8' }).trim().split('\n')
  const own = lines.filter(line => line.includes(`pid=${pid},`))
  return own.map(line => line.trim().split(/\s+/)[3] ?? '').sort()
}

/** Random packets to loopback addresses, or from there or the node's own. */
function oddFlows(seed: number): readonly Flow[] {
  const random = createRandom(seed)
  const ports = [NODE_PORT, HEALTH_CHECK_PORT, METRICS_PORT, HEALTH_PORT, CLOSED, 80] as const
  return Array.from({ length: FLOWS }, () => {
    const [from, port] = [random.pick(['pod', 'outside'] as const), random.pick(ports)]
    return random.chance(0.5)
      ? tcp(from, fair(from), random.pick(LOOPBACK), port)
      : tcp(from, random.pick([...LOOPBACK, NODE]), random.pick([NODE, CLUSTER_IP, GUARDED]), port)
  })
}

/** What differs between modes. */
export interface PodMode {
  readonly args: readonly string[]
  readonly routeLocalnet: '0' | '1'
  /** Health check node ports answer at every address of the node. */
  readonly checksEverywhere: boolean
  /** Service addresses are bound to the node: their other ports are rejected, before the kernel looks for martians. */
  readonly isBound: boolean
  readonly otherPort: 'PASS' | 'REJECT'
}

const EVERYWHERE: PodMode = {
  args: ['--proxy-mode=iptables'],
  routeLocalnet: '1',
  checksEverywhere: true,
  isBound: false,
  otherPort: 'PASS',
}

export const POD_MODES = {
  nftables: { ...EVERYWHERE, args: [], routeLocalnet: '0', checksEverywhere: false },
  iptables: EVERYWHERE,
  iptablesWithoutLocalhost: {
    ...EVERYWHERE,
    args: [...EVERYWHERE.args, '--iptables-localhost-nodeports=false'],
    routeLocalnet: '0',
  },
  ipvs: {
    args: ['--proxy-mode=ipvs'],
    routeLocalnet: '0',
    checksEverywhere: false,
    isBound: true,
    otherPort: 'REJECT',
  },
} as const satisfies Readonly<Record<string, PodMode>>

/** In a new network namespace; fails where a packet reaches somebody, or where more listens than is documented. */
export async function attackAsPod(mode: PodMode, task: TestContext['task']): Promise<void> {
  const cluster = await Cluster.open({ packets: true })
  try {
    const daemon = await open(cluster, mode.args)
    const setting = readFileSync('/proc/sys/net/ipv4/conf/all/route_localnet', 'utf8').trim()
    expect(setting).toBe(mode.routeLocalnet)
    const flows = [...MARTIANS, ...oddFlows(SEED).filter(flow => setting === '0' || !isLetIn(flow))]
    const seen = await fates(cluster, flows)
    const nobody = mode.isBound ? ['DROP', 'REJECT'] : ['DROP']
    expectHeld(
      flows.flatMap((flow, index) =>
        nobody.includes(seen[index] ?? '') ? [] : [`${JSON.stringify(flow)}: ${seen[index]}`],
      ),
    )
    const known = [...guards(mode.otherPort), ...spoofed(mode)]
    expect(
      await fates(
        cluster,
        known.map(([flow]) => flow),
      ),
    ).toEqual(known.map(([, fate]) => fate))
    new Tally(task).add('flows', flows.length + known.length)
    await expectListeners(daemon, mode)
  } finally {
    await cluster.close()
  }
}

/** Nothing else of ours can be reached. */
async function expectListeners({ pid }: Daemon, { checksEverywhere }: PodMode): Promise<void> {
  const checks = `${checksEverywhere ? '0.0.0.0' : NODE}:${HEALTH_CHECK_PORT}`
  const wanted = [`127.0.0.1:${METRICS_PORT}`, `0.0.0.0:${HEALTH_PORT}`, checks].sort()
  await eventually(() => listenersOf(pid).length >= wanted.length, {
    describe: () => listenersOf(pid).join(),
  })
  expect(listenersOf(pid)).toEqual(wanted)
}
