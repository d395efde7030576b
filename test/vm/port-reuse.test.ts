import { setTimeout as delay } from 'node:timers/promises'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { openIpvsPlane } from '../support/ipvs-plane.ts'
import { Lab } from '../support/lab/lab.ts'
import { inNamespace } from '../support/lab/topology.ts'
import type { TrafficReport } from '../support/lab/traffic.ts'
import { endpoint, serviceOf, sliceOf } from '../support/objects.ts'
import { type Computed, change, commitAll, computeIn, IPVS } from '../support/pipeline.ts'
import { LOCAL_IPS } from '../support/scenario.ts'
import { setIpvsSysctls } from './ipvs-sysctls.ts'

const CLUSTER_IP = '172.30.0.41'
const PODS = ['10.180.1.1', '10.180.1.2', '10.180.1.3', '10.180.1.4']
const SERVING = 2
/** Fewer than connections: each is used again while IPVS remembers what it was used for. */
const PORTS = 64
const RATE = 40
const UPDATES = 16
const BETWEEN_MS = 250
/** An endpoint leaves with every update, and with it a half of the ports. */
const STALLED_SHARE = 0.05

let lab: Lab

beforeAll(async () => {
  lab = await Lab.start()
  setIpvsSysctls()
  const client = lab.topology.outside.pid
  const set = (name: string, value: string) =>
    inNamespace(client, ['sysctl', '-qw', `net.ipv4.${name}=${value}`])
  set('ip_local_port_range', `40000 ${40_000 + PORTS - 1}`)
  set('tcp_tw_reuse', '1')
})

afterAll(async () => {
  await lab.close()
})

/** So many of the pods, from this one on. */
function slice(from: number): object {
  const serving = Array.from({ length: SERVING }, (_, index) => PODS[(from + index) % PODS.length] ?? '')
  return sliceOf(
    'web',
    serving.map(address => endpoint(address, { nodeName: 'other-node' })),
  )
}

const SERVICE = serviceOf('web', CLUSTER_IP)

interface Seen extends TrafficReport {
  readonly repeatedSyns: number
}

/** What becomes of a client's connections meanwhile. */
async function during(work: () => Promise<unknown>): Promise<Seen> {
  const before = lab.repeatedSyns()
  const client = lab.client({
    from: 'outside',
    source: '203.0.113.9',
    destination: CLUSTER_IP,
    port: 80,
    rate: RATE,
  })
  await work()
  return { ...(await client.stop()), repeatedSyns: lab.repeatedSyns() - before }
}

test('F108: ports that are used again in a rolling update reach an endpoint as they do without one', async () => {
  const servers = await lab.servers(PODS.map(address => `${address}:8080`))
  const { plane, close } = openIpvsPlane({})
  try {
    let computed: Computed<(typeof IPVS)['empty']> = change(computeIn(IPVS, {}, LOCAL_IPS), {
      objects: [SERVICE, slice(0)],
    })
    let held = await commitAll(plane, plane.empty, computed.state)
    const quiet = await during(() => delay(UPDATES * BETWEEN_MS))
    const rolling = await during(async () => {
      for (let update = 1; update <= UPDATES; update++) {
        computed = change(computed, { objects: [slice(update)] })
        held = await commitAll(plane, held, computed.state)
        await delay(BETWEEN_MS)
      }
    })
    expect(quiet.ok).toBeGreaterThan(PORTS)
    expect(rolling.ok).toBeGreaterThan(PORTS)
    expect(rolling.endpoints.size).toBe(PODS.length)
    for (const seen of [quiet, rolling]) expect(seen).toMatchObject({ refused: 0, timeouts: 0, other: 0 })
    // k/k#81775: the SYN of each port that an endpoint left behind was lost, and came again a second later. So does a SYN
    // here and there when the guest stands still for a second.
    expect(rolling.repeatedSyns).toBeLessThanOrEqual(rolling.ok * STALLED_SHARE)
  } finally {
    await close()
    await servers.close()
  }
})
