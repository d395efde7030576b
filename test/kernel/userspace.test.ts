import { execFileSync } from 'node:child_process'
import { connect } from 'node:net'
import { afterAll, afterEach, beforeAll, expect, it } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import type { NftClient } from '../../src/kernel/nft/client.ts'
import { DEFAULT_LIMITS } from '../../src/modes/common/forwarder/context.ts'
import type { ModeEvent } from '../../src/modes/mode.ts'
import { UserspacePlane } from '../../src/modes/userspace/plane.ts'
import type { UserspaceState } from '../../src/modes/userspace/state.ts'
import { Lab } from '../support/lab/lab.ts'
import { serviceOf, sliceOf } from '../support/objects.ts'
import { eventually } from '../support/patience.ts'
import { change, commitAll, computeIn, openClient } from '../support/pipeline.ts'
import { LOCAL_IPS } from '../support/scenario.ts'
import { USERSPACE, userspaceOptionsOf } from '../support/userspace-mode.ts'

const TABLE = 'kube-proxy-userspace'
const NODE_IP = '192.168.0.2'
const NODE_IP_6 = '2001:db8::2'
const CONNECTIONS = 64

let lab: Lab
let client: NftClient
let plane: UserspacePlane
let computed: ReturnType<typeof computeIn<UserspaceState>>
let held: UserspaceState
const events: ModeEvent[] = []

function textsWith(words: string): readonly string[] {
  return events.flatMap(event => (event.kind === 'notice' && event.text.includes(words) ? [event.text] : []))
}

beforeAll(async () => {
  lab = await Lab.start()
  client = openClient()
  plane = openPlane()
  plane.startForwarding()
  computed = computeIn(USERSPACE, {}, LOCAL_IPS)
  computed = change(computed, { objects: [NODE] })
  held = plane.empty
})

afterEach(async () => {
  events.length = 0
  await program([], ['Service ns/a', 'Service ns/b', 'EndpointSlice ns/a-4', 'EndpointSlice ns/b-4'])
})

afterAll(async () => {
  plane.destroy()
  await client.close()
  await lab.close()
})

function openPlane(): UserspacePlane {
  const options = { ...userspaceOptionsOf({}), limits: { ...DEFAULT_LIMITS, connections: CONNECTIONS * 2 } }
  return new UserspacePlane({ client, clock: systemClock, options, report: event => events.push(event) })
}

const NODE = {
  apiVersion: 'v1',
  kind: 'Node',
  metadata: { name: 'test-node' },
  spec: { podCIDRs: ['10.180.0.0/24'] },
  status: { addresses: [NODE_IP, NODE_IP_6].map(address => ({ type: 'InternalIP', address })) },
}

interface Objects {
  readonly clusterIP: string
  readonly endpoints: readonly string[]
  readonly targetPort: number
  readonly nodePort?: number
}

function objects(name: string, { clusterIP, endpoints, targetPort, nodePort }: Objects): readonly object[] {
  const addressType = clusterIP.includes(':') ? 'IPv6' : 'IPv4'
  const type = nodePort === undefined ? 'ClusterIP' : 'NodePort'
  const port = { port: 80, protocol: 'TCP', ...(nodePort === undefined ? {} : { nodePort }) }
  return [
    serviceOf(name, clusterIP, { type, ipFamilies: [addressType], ports: [port] }),
    sliceOf(name, endpoints, {
      addressType,
      name: `${name}-4`,
      ports: [{ name: '', port: targetPort, protocol: 'TCP' }],
    }),
  ]
}

async function program(list: readonly object[], remove: readonly string[] = []): Promise<void> {
  computed = change(computed, { objects: list, remove })
  held = await commitAll(plane, held, computed.state)
}

function nft(...args: string[]): string {
  return execFileSync('nft', args, { encoding: 'utf8' })
}

async function listenerPort(family: 'ip' | 'ip6' = 'ip'): Promise<number> {
  const listing = nft('list', 'map', family, TABLE, 'frontends')
  const match = /: \S+ \. (\d+) }/.exec(listing)
  return Number(match?.[1])
}

/** What a whole connection comes to: what the server said, or the error. */
async function ask(host: string, port: number): Promise<string> {
  const socket = connect({ host, port })
  let text = ''
  try {
    for await (const chunk of socket) text += String(chunk)
    return text
  } catch (error) {
    return error instanceof Error && 'code' in error ? String(error.code) : String(error)
  }
}

/** Until nothing is relayed any more. */
async function idle(): Promise<void> {
  await eventually(() => plane.counts.tcp.held === 0)
}

/** Connections opened elsewhere: `ok` and `refused` of some. */
async function outcomes(from: 'outside' | 'pod' | 'node', destination: string, port: number) {
  const v6 = destination.includes(':')
  const source = {
    outside: ['203.0.113.9', '2001:db8:f::9'],
    pod: ['10.180.9.9', 'fd00:10::9:9'],
    node: [NODE_IP, NODE_IP_6],
  }[from][v6 ? 1 : 0]
  const traffic = lab.client({ from, source: source ?? '', destination, port, rate: 200 })
  await eventually(async () => {
    const { ok, refused, timeouts, other } = await traffic.report()
    return ok + refused + timeouts + other > 3
  })
  const { ok, refused, timeouts, other, endpoints } = await traffic.stop()
  return { ok: ok > 0, refused: refused > 0, failed: timeouts + other, endpoints: [...endpoints.keys()] }
}

const SERVED = { ok: true, refused: false, failed: 0 }
const REFUSED = { ok: false, refused: true, failed: 0, endpoints: [] }

it.each([
  ['IPv4', '172.30.0.41', '10.180.0.1', NODE_IP, 'ip'],
  ['IPv6', 'fd00:172:30::41', 'fd00:10::1', NODE_IP_6, 'ip6'],
] as const)(
  'serves outside, pods and the node, and refuses all of them at its listener: %s',
  async (_, clusterIP, pod, node, family) => {
    const endpoint = pod.includes(':') ? `[${pod}]:8080` : `${pod}:8080`
    const servers = await lab.servers([endpoint])
    await program(objects('a', { clusterIP, endpoints: [pod], targetPort: 8080, nodePort: 30080 }))
    const port = await listenerPort(family)
    for (const from of ['outside', 'pod', 'node'] as const) {
      expect(await outcomes(from, clusterIP, 80), from).toMatchObject({ ...SERVED, endpoints: [endpoint] })
      expect(await outcomes(from, node, 30_080), from).toMatchObject({ ...SERVED, endpoints: [endpoint] })
      expect(await outcomes(from, node, port), `${from}: listener`).toEqual(REFUSED)
    }
    expect(await ask(node, port)).toBe('ECONNREFUSED')
    await servers.close()
  },
)

it('does not relay to what it redirects itself', async () => {
  const servers = await lab.servers(['10.180.0.1:80'])
  // The endpoint of a is the ClusterIP of b, whose endpoint is that of a: relayed, it would never end.
  await program([
    ...objects('a', { clusterIP: '172.30.0.41', endpoints: ['172.30.0.42'], targetPort: 80 }),
    ...objects('b', { clusterIP: '172.30.0.42', endpoints: ['172.30.0.41', '10.180.0.1'], targetPort: 80 }),
  ])
  expect(await outcomes('outside', '172.30.0.42', 80)).toMatchObject({
    ...SERVED,
    endpoints: ['10.180.0.1:80'],
  })
  expect(await ask('172.30.0.41', 80)).toBe('ECONNRESET')
  await idle()
  expect(plane.counts.loops).toBe(0)
  await servers.close()
})

it('recognizes its own connections when somebody else turns them back', async () => {
  await program(objects('a', { clusterIP: '172.30.0.41', endpoints: ['10.180.0.1'], targetPort: 8080 }))
  const port = await listenerPort()
  nft('add', 'table', 'ip', 'trick')
  nft('add', 'chain', 'ip', 'trick', 'out', '{ type nat hook output priority -110 ; }')
  nft(`add rule ip trick out ip daddr 10.180.0.1 meta l4proto tcp dnat to ${NODE_IP}:${port}`)
  try {
    expect(await ask('172.30.0.41', 80)).toBe('ECONNRESET')
    await idle()
    // The only endpoint is tried four times.
    expect(plane.counts.loops).toBe(4)
    expect(textsWith('that this process made to itself')).toHaveLength(1)
  } finally {
    nft('delete', 'table', 'ip', 'trick')
  }
})
