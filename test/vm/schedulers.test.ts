import { afterAll, beforeAll, expect, it, onTestFinished } from 'vitest'
import { openIpvsPlane } from '../support/ipvs-plane.ts'
import { Lab } from '../support/lab/lab.ts'
import { endpoint, serviceOf, sliceOf } from '../support/objects.ts'
import { eventually } from '../support/patience.ts'
import { change, commitAll, computeIn, IPVS } from '../support/pipeline.ts'
import { LOCAL_IPS } from '../support/scenario.ts'
import { setIpvsSysctls } from './ipvs-sysctls.ts'

const CLUSTER_IP = '172.30.0.41'
const PODS = ['10.180.1.1', '10.180.1.2', '10.180.1.3']
const ANSWERS = 60

let lab: Lab

beforeAll(async () => {
  lab = await Lab.start()
  setIpvsSysctls()
  const servers = await lab.servers(PODS.map(address => `${address}:8080`))
  return () => servers.close()
})

afterAll(async () => {
  await lab.close()
})

/** Programs a Service with these annotations, whose endpoints are on the nodes n0, n1 and n2. */
async function program(annotations: object): Promise<void> {
  const { plane, close } = openIpvsPlane({})
  onTestFinished(close)
  const metadata = { namespace: 'ns', name: 'web', uid: '4e9f', annotations }
  const pods = PODS.map((address, at) => endpoint(address, { nodeName: `n${at}` }))
  const objects = [serviceOf('web', CLUSTER_IP, {}, { metadata }), sliceOf('web', pods)]
  await plane.cleanup()
  await commitAll(plane, plane.empty, change(computeIn(IPVS, {}, LOCAL_IPS), { objects }).state)
}

/** The number of connections that each pod answered, of at least so many that one client opened. */
async function answersTo(source: string, least = ANSWERS): Promise<readonly number[]> {
  const where = { from: 'outside', source, destination: CLUSTER_IP, port: 80, rate: 40 } as const
  const client = lab.client(where)
  await eventually(async () => (await client.report()).ok >= least)
  const { endpoints, ...rest } = await client.stop()
  expect(rest).toMatchObject({ refused: 0, timeouts: 0, other: 0 })
  return PODS.map(address => endpoints.get(`${address}:8080`) ?? 0)
}

it('rr gives each endpoint its turn', async () => {
  await program({})
  const counts = await answersTo('203.0.113.9')
  expect(Math.max(...counts) - Math.min(...counts)).toBeLessThanOrEqual(1)
})

it('maglev, which is mh, gives a client one endpoint, and clients several', async () => {
  await program({ 'kprobe.io/balance': 'maglev' })
  const used = new Set<number>()
  for (const last of [1, 2, 3, 4, 5, 6, 7, 8]) {
    const counts = await answersTo(`203.0.113.${last}`, 8)
    expect(counts.filter(count => count > 0)).toHaveLength(1)
    used.add(counts.findIndex(count => count > 0))
  }
  // The hash has fixed keys: the same clients get the same endpoints in every run.
  expect(used.size).toBeGreaterThan(1)
})

it('maglev/5-tuple, which is mh with ports, divides the connections of a client', async () => {
  await program({ 'kprobe.io/balance': 'maglev/5-tuple' })
  expect((await answersTo('203.0.113.9')).filter(count => count > 0).length).toBeGreaterThan(1)
})

it('wlc gives an endpoint of weight 3 three times as many connections', async () => {
  await program({ 'kprobe.io/ipvs-scheduler': 'wlc', 'kprobe.io/weights': 'node=n0:3' })
  const counts = await answersTo('203.0.113.9')
  const all = counts.reduce((sum, count) => sum + count, 0)
  // An open connection counts as 256 closed ones, so a turn may go to another endpoint meanwhile.
  expect(Math.abs((counts[0] ?? 0) - 0.6 * all)).toBeLessThanOrEqual(0.1 * all)
})
