import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { mkdirSync } from 'node:fs'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import type { NftablesState } from '../../src/modes/nftables/state.ts'
import { enterNetns } from '../support/lab/netns.ts'
import {
  type Computed,
  change,
  commitAll,
  computeIn,
  type KernelPlane,
  NFTABLES,
  openPlane,
} from '../support/pipeline.ts'

/**
 *     clients ── ROUTER ── pods
 *                ││└─ n1
 *                │└── n2
 *                └─── n3
 *
 * Three nodes without pods of their own. The router sends the packets of a third of the clients to each node, in both
 * directions, and changes its mind: then another node meets connections that it has not seen begin.
 */
const NODES = ['n1', 'n2', 'n3'] as const
const ENDPOINTS = [1, 2, 3, 4, 5].map(last => `10.180.0.${last}`)
const VIP = '172.30.0.41'
const CLIENTS = 150
const EACH = 4
/** 10,050 connections in all. */
const MANY = 67
const PEERS = fileURLToPath(new URL('balance-peers.mjs', import.meta.url))

let planes: { readonly opened: KernelPlane; held: NftablesState; computed: Computed<NftablesState> }[] = []
let peers: ChildProcess[] = []

function ip(lines: readonly string[], netns?: string): void {
  const at = netns === undefined ? [] : ['-n', netns]
  execFileSync('ip', [...at, '-batch', '-'], { input: lines.join('\n') })
}

function link(name: string, address: string, routerAddress: string): void {
  ip([`link add r-${name} netns router type veth peer name e0 netns ${name}`])
  ip([`addr add ${routerAddress} dev r-${name}`, `link set r-${name} up`], 'router')
  ip([`addr add ${address} dev e0`, 'link set e0 up', 'link set lo up'], name)
  const gateway = routerAddress.split('/')[0]
  ip([`route add default via ${gateway}`], name)
}

function forward(netns: string): void {
  const settings = [
    'net.ipv4.ip_forward=1',
    'net.ipv4.conf.all.rp_filter=0',
    'net.ipv4.conf.default.rp_filter=0',
  ]
  execFileSync('ip', ['netns', 'exec', netns, 'sysctl', '-qw', ...settings])
}

/** With it, a node takes a connection back whose data it has missed; without, it calls the packets invalid. */
function beLiberal(value: 0 | 1): void {
  for (const node of NODES)
    execFileSync('ip', [
      'netns',
      'exec',
      node,
      'sysctl',
      '-qw',
      `net.netfilter.nf_conntrack_tcp_be_liberal=${value}`,
    ])
}

/** Sends the clients of each third to the node that is so many places further. */
function route(shift: number): void {
  const lines = NODES.map(
    (_, group) =>
      `route replace default via 192.168.${(group + shift) % NODES.length}.2 table ${100 + group}`,
  )
  ip(lines, 'router')
}

beforeAll(async () => {
  mkdirSync('/run/netns', { recursive: true })
  execFileSync('mount', ['-t', 'tmpfs', 'tmpfs', '/run'])
  for (const name of ['router', 'clients', 'pods', ...NODES]) execFileSync('ip', ['netns', 'add', name])
  for (const name of ['router', ...NODES]) forward(name)
  link('clients', '10.1.255.1/16', '10.1.255.254/16')
  link('pods', '10.180.0.250/24', '10.180.0.254/24')
  for (const [at, node] of NODES.entries()) link(node, `192.168.${at}.2/24`, `192.168.${at}.1/24`)
  ip(
    Array.from({ length: CLIENTS }, (_, at) => `addr add 10.1.${at % 3}.${1 + Math.floor(at / 3)}/16 dev e0`),
    'clients',
  )
  ip(
    ENDPOINTS.map(address => `addr add ${address}/24 dev e0`),
    'pods',
  )
  ip(
    NODES.flatMap((_, group) => [
      `rule add iif r-clients from 10.1.${group}.0/24 lookup ${100 + group}`,
      `rule add iif r-pods to 10.1.${group}.0/24 lookup ${100 + group}`,
    ]),
    'router',
  )
  const server = await peer('pods', ['serve', ...ENDPOINTS])
  expect(await server.next()).toBe('ready')
})

afterEach(async () => {
  for (const { opened } of planes) await opened.client.close()
  planes = []
  beLiberal(0)
  for (const child of peers.splice(1)) child.kill()
})

afterAll(() => {
  for (const child of peers) child.kill()
  peers = []
})

function peer(netns: string, words: readonly string[]) {
  const child = spawn('nsenter', [`--net=/run/netns/${netns}`, process.execPath, PEERS, ...words], {
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  peers.push(child)
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
  return {
    ask: () => child.stdin.write('\n'),
    next: async () => String((await lines.next()).value),
  }
}

function objects(balance: string, endpoints: readonly string[]): readonly object[] {
  const metadata = {
    namespace: 'ns1',
    name: 'web',
    uid: '4e9f',
    annotations: { 'kprobe.io/balance': balance },
  }
  const ports = [{ name: 'http', port: 80, protocol: 'TCP' }]
  return [
    { apiVersion: 'v1', kind: 'Service', metadata, spec: { clusterIP: VIP, clusterIPs: [VIP], ports } },
    {
      apiVersion: 'discovery.k8s.io/v1',
      kind: 'EndpointSlice',
      metadata: { namespace: 'ns1', name: 'web-a', labels: { 'kubernetes.io/service-name': 'web' } },
      addressType: 'IPv4',
      endpoints: endpoints.map(address => ({ addresses: [address], nodeName: 'elsewhere' })),
      ports,
    },
  ]
}

/** Programs all nodes. */
async function program(balance: string, endpoints: readonly string[] = ENDPOINTS): Promise<void> {
  if (planes.length === 0)
    for (const node of NODES) {
      enterNetns(`/run/netns/${node}`)
      const opened = openPlane({})
      await opened.plane.cleanup()
      planes.push({ opened, held: opened.plane.empty, computed: computeIn(NFTABLES, {}, []) })
    }
  for (const node of planes) {
    node.computed = change(node.computed, { objects: objects(balance, endpoints), remove: [] })
    node.held = await commitAll(node.opened.plane, node.held, node.computed.state)
  }
}

/** Opens connections, and gives what asks for an answer on each: the endpoint, or an empty text where it is broken. */
async function connections(each = EACH) {
  const { ask, next } = peer('clients', ['keep', VIP, String(CLIENTS), String(each)])
  const answers = async (): Promise<readonly string[]> => {
    ask()
    return JSON.parse(await next())
  }
  const first = await answers()
  expect(first.filter(endpoint => !ENDPOINTS.includes(endpoint))).toEqual([])
  return { first, answers }
}

describe('three nodes behind a router that changes its mind', () => {
  it('serve each connection by the same endpoint with maglev', async () => {
    route(0)
    await program('maglev')
    const { first, answers } = await connections(MANY)
    expect(first).toHaveLength(CLIENTS * MANY)
    expect(new Set(first).size).toBe(ENDPOINTS.length)
    for (const shift of [1, 2]) {
      route(shift)
      expect(await answers()).toEqual(first)
    }
    beLiberal(1)
    route(0)
    expect(await answers()).toEqual(first)
  })

  it('and with maglev/5-tuple, which divides the connections of one client', async () => {
    route(0)
    await program('maglev/5-tuple')
    const { first, answers } = await connections()
    const clients = Array.from(
      { length: CLIENTS },
      (_, at) => new Set(first.slice(at * EACH, (at + 1) * EACH)),
    )
    expect(clients.filter(({ size }) => size > 1).length).toBeGreaterThan(CLIENTS / 2)
    route(1)
    expect(await answers()).toEqual(first)
  })

  it('break most connections with random', async () => {
    route(0)
    await program('random')
    const { first, answers } = await connections()
    route(1)
    const second = await answers()
    expect(second.filter((endpoint, at) => endpoint === first[at]).length).toBeLessThan(first.length / 2)
  })

  it('keep connections to endpoints that live when another one goes, but for few', async () => {
    route(0)
    await program('maglev')
    const { first, answers } = await connections()
    const [gone, ...left] = ENDPOINTS
    await program('maglev', left)
    route(1)
    const second = await answers()
    const living = first.filter(endpoint => endpoint !== gone).length
    const kept = first.filter((endpoint, at) => endpoint !== gone && second[at] === endpoint).length
    expect(kept).toBeGreaterThanOrEqual(living - 0.06 * first.length)
  })

  it('keep every connection when the policy changes', async () => {
    route(0)
    await program('random')
    const { first, answers } = await connections()
    for (const balance of ['maglev', 'local-first', 'maglev/5-tuple', 'random']) {
      await program(balance)
      expect(await answers(), balance).toEqual(first)
    }
  })
})
