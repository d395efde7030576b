import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { afterEach, describe, expect, it } from 'vitest'
import { Cluster, HEALTH_PORT, METRICS_PORT } from '../../faults/cluster.ts'
import { balanced, serviceOf, sliceOf } from '../../faults/cluster-objects.ts'
import { createRandom } from '../../support/apiserver/random.ts'
import type { Daemon } from '../../support/daemon.ts'
import type { Flow, Outcome } from '../../support/lab/lab.ts'
import { eventually } from '../../support/patience.ts'
import { expectHeld, many, SEED, Tally } from '../attack.ts'

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

let cluster: Cluster

afterEach(() => cluster.close())

async function open(args: readonly string[]): Promise<Daemon> {
  cluster = await Cluster.open({ packets: true })
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
async function fates(flows: readonly Flow[]): Promise<readonly string[]> {
  const outcomes = await cluster.lab.trace(flows, { tries: 2 })
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
const GUARDS: readonly (readonly [Flow, string])[] = [
  [tcp('outside', '203.0.113.9', GUARDED, 80), `${ENDPOINT}:8080`],
  [tcp('outside', '8.8.8.8', GUARDED, 80), 'DROP'],
  [tcp('outside', '8.8.8.8', GUARDED, 81), 'PASS'],
  // The number of the node port at the address of the load balancer.
  [tcp('outside', '8.8.8.8', GUARDED, NODE_PORT), 'PASS'],
]

/** What docs/threat-model.md calls the network's business: addresses that are not the sender's own. */
const SPOOFED: readonly (readonly [Flow, string])[] = [
  [tcp('pod', '203.0.113.9', GUARDED, 80), `${ENDPOINT}:8080`],
  [tcp('pod', CLUSTER_IP, CLUSTER_IP, 80), `${ENDPOINT}:8080`],
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

const LOCAL_ONLY = '--iptables-localhost-nodeports=false'

describe('a compromised pod, or a host beside the node', () => {
  it.for([
    ['nftables mode', '0', []],
    ['iptables mode', '1', ['--proxy-mode=iptables']],
    [`iptables mode with ${LOCAL_ONLY}`, '0', ['--proxy-mode=iptables', LOCAL_ONLY]],
  ] as const)(
    'F149: %s: martian packets reach nobody, guards hold',
    async ([, routeLocalnet, args], { task }) => {
      const daemon = await open(args)
      const setting = readFileSync('/proc/sys/net/ipv4/conf/all/route_localnet', 'utf8').trim()
      expect(setting).toBe(routeLocalnet)
      const odd = oddFlows(SEED).filter(flow => setting === '0' || !isLetIn(flow))
      const flows = [...MARTIANS, ...odd]
      const seen = await fates(flows)
      const fell = flows.flatMap((flow, index) =>
        seen[index] === 'DROP' ? [] : [`${JSON.stringify(flow)}: ${seen[index]}`],
      )
      expectHeld(fell)
      const known = [...GUARDS, ...SPOOFED]
      expect(await fates(known.map(([flow]) => flow))).toEqual(known.map(([, fate]) => fate))
      new Tally(task).add('flows', flows.length + known.length)
      // Nothing else of ours can be reached.
      const checks = args.length === 0 ? `${NODE}:${HEALTH_CHECK_PORT}` : `0.0.0.0:${HEALTH_CHECK_PORT}`
      const wanted = [`127.0.0.1:${METRICS_PORT}`, `0.0.0.0:${HEALTH_PORT}`, checks].sort()
      await eventually(() => listenersOf(daemon.pid).length >= wanted.length, {
        describe: () => listenersOf(daemon.pid).join(),
      })
      expect(listenersOf(daemon.pid)).toEqual(wanted)
    },
  )
})
