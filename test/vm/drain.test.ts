import { execFileSync } from 'node:child_process'
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest'
import type { IpvsState } from '../../src/modes/ipvs/state.ts'
import { UdpPeer } from '../churn/pods.ts'
import { type OpenIpvsPlane, openIpvsPlane } from '../support/ipvs-plane.ts'
import { Lab } from '../support/lab/lab.ts'
import type { Servers } from '../support/lab/traffic.ts'
import { endpoint, serviceOf, sliceOf } from '../support/objects.ts'
import { eventually } from '../support/patience.ts'
import { type Computed, change, commitAll, computeIn, IPVS } from '../support/pipeline.ts'
import { LOCAL_IPS } from '../support/scenario.ts'
import { Echo, Talker } from '../support/talkers.ts'
import { setIpvsSysctls } from './ipvs-sysctls.ts'

/* What becomes of connections to an endpoint that goes. */

const CLUSTER_IP = '172.30.0.41'
const PODS = ['10.180.1.1', '10.180.1.2']
const [GOING = '', STAYING = ''] = PODS
const UDP_PORT = 5_300
const DRAIN_MS = 4_000

let lab: Lab
let servers: Servers
let open: OpenIpvsPlane
let computed: Computed<IpvsState>
let held: IpvsState

beforeAll(async () => {
  lab = await Lab.start()
  setIpvsSysctls()
  // They give pods their addresses, and a way back.
  servers = await lab.servers(PODS.map(address => `${address}:8080`))
})

afterAll(async () => {
  await servers.close()
  await lab.close()
})

beforeEach(async () => {
  open = openIpvsPlane({}, { drainMs: DRAIN_MS, digestMs: 500 })
  await open.plane.cleanup()
  computed = computeIn(IPVS, {}, LOCAL_IPS)
  held = open.plane.empty
})

afterEach(() => open.close())

function slice(addresses: readonly string[]): object {
  const ports = [
    { name: 'tcp', port: Echo.port, protocol: 'TCP' },
    { name: 'udp', port: UDP_PORT, protocol: 'UDP' },
  ]
  const endpoints = addresses.map(address => endpoint(address, { nodeName: 'other-node' }))
  return sliceOf('web', endpoints, { ports })
}

const SERVICE = serviceOf('web', CLUSTER_IP, {
  ports: [
    { name: 'tcp', port: 7, protocol: 'TCP' },
    { name: 'udp', port: 53, protocol: 'UDP' },
  ],
})

async function program(addresses: readonly string[]): Promise<void> {
  computed = change(computed, { objects: [SERVICE, slice(addresses)] })
  held = await commitAll(open.plane, held, computed.state)
}

/** `-a -t 172.30.0.41:7 -r 10.180.1.1:7000 -m -w 1`, as ipvsadm says it; undefined when there is none. */
function weightOf(flag: '-t' | '-u', address: string): number | undefined {
  const lines = execFileSync('ipvsadm', ['-S', '-n'], { encoding: 'utf8' }).split('\n')
  const line = lines.find(text => text.startsWith(`-a ${flag} `) && text.includes(` -r ${address}:`))
  return line === undefined ? undefined : Number(/-w (\d+)/.exec(line)?.[1])
}

test('F100: TCP connections to an endpoint that goes are left to end, until the deadline; no new one comes', async () => {
  const echo = new Echo(lab.topology.pods.pid, PODS)
  const talkers: Talker[] = []
  try {
    await program(PODS)
    // They take turns.
    for (const _ of PODS) {
      talkers.push(new Talker(undefined, CLUSTER_IP, 7))
      await talkers.at(-1)?.answers(1)
    }
    await program([STAYING])
    expect([weightOf('-t', GOING), weightOf('-t', STAYING)]).toEqual([0, 1])
    await Promise.all(talkers.map(talker => talker.answers(5)))
    // One that is back has its weight back, whatever it was left for.
    await program(PODS)
    expect(weightOf('-t', GOING)).toBe(1)
    await program([STAYING])
    open.plane.startUpkeep()
    await eventually(() => weightOf('-t', GOING) === undefined)
    expect(weightOf('-t', STAYING)).toBe(1)
    talkers.push(new Talker(undefined, CLUSTER_IP, 7))
    await talkers.at(-1)?.answers(3)
  } finally {
    await Promise.all(talkers.map(talker => talker.close()))
    await echo.close()
  }
})

test('F102: UDP goes on at once with another endpoint, from the same port, too', async () => {
  const outside = lab.client({
    from: 'outside',
    source: '203.0.113.9',
    destination: CLUSTER_IP,
    port: 7,
    rate: 1,
  })
  const peers = await UdpPeer.serve(
    lab.topology,
    PODS.map(address => `${address}:${UDP_PORT}`),
  )
  await program([GOING])
  const client = UdpPeer.ask(lab.topology, { kind: 'sticky', address: CLUSTER_IP, port: 53, rate: 5 })
  try {
    await client.met(`${GOING}:${UDP_PORT}`)
    expect(connections()).toMatch(/UDP +\d+:\d+ +UDP .*10\.180\.1\.1/)
    await program([STAYING])
    expect([weightOf('-u', GOING), weightOf('-u', STAYING)]).toEqual([undefined, 1])
    await client.met(`${STAYING}:${UDP_PORT}`)
  } finally {
    const seen = await client.stop()
    await Promise.all([outside.stop(), peers.stop()])
    expect(seen.failed).toBe(0)
    expect(Object.keys(seen.endpoints).sort()).toEqual(PODS.map(address => `${address}:${UDP_PORT}`))
  }
})

function connections(): string {
  return execFileSync('ipvsadm', ['-L', '-n', '-c'], { encoding: 'utf8' })
}
