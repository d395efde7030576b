import { afterEach, beforeEach, expect, it } from 'vitest'
import type { Daemon } from '../support/daemon.ts'
import type { Flow, Outcome } from '../support/lab/lab.ts'
import { balanced, endpoint, serviceOf, sliceOf } from '../support/objects.ts'
import { eventually } from '../support/patience.ts'
import { Cluster } from './cluster.ts'

/* What a Service says, as a daemon takes it from an API server. What packets do then, scenarios say, with the other faults of content. */

const [VIP, EXTERNAL, A] = ['172.30.1.1', '198.51.100.7', '10.0.5.1']

const cluster = Cluster.ofEachTest()
let daemon: Daemon

beforeEach(async () => {
  await cluster.open({ packets: true })
  // Others, which no fault of one may touch.
  cluster.put(serviceOf('bystander', '172.30.9.9'), sliceOf('bystander', ['10.0.9.9']))
  daemon = await cluster.running()
})

afterEach(async () => {
  const { lab } = cluster
  const [bystander] = await lab.trace([flow('172.30.9.9')])
  expect([...(bystander?.endpoints.keys() ?? [])]).toEqual(['10.0.9.9:8080'])
})

function flow(destination: string, change: Partial<Flow> = {}): Flow {
  return { from: 'outside', source: '203.0.113.5', protocol: 'TCP', destination, port: 80, ...change }
}

/** Where new connections to this address go, once the kernel holds what the server has: endpoints, or the verdict. */
async function reached(destination: string, change: Partial<Flow> = {}): Promise<string> {
  await cluster.converged()
  const [outcome] = await cluster.lab.trace([flow(destination, change)])
  return wordsOf(outcome)
}

function wordsOf(outcome: Outcome | undefined): string {
  if (outcome === undefined) throw new Error('no outcome')
  return outcome.verdict === 'DNAT' ? [...outcome.endpoints.keys()].sort().join(' ') : outcome.verdict
}

/** What the daemon has told of parts of this object that it does not use. */
function refusals(object: string): readonly string[] {
  return daemon.said('refused').flatMap(record => (record.object === object ? [String(record.field)] : []))
}

function eventsOf(reason: string): readonly string[] {
  return cluster.server.store
    .list('events')
    .flatMap(event => (event.reason === reason ? [String(event.note)] : []))
}

it('F31: addresses of the wrong family, or none at all, are refused one by one, and the rest is live', async () => {
  const [spec, more] = balanced(
    { externalIPs: ['2001:db8::77', EXTERNAL, '198.51.100'] },
    'fe80::1',
    '198.51.100.8',
  )
  cluster.put(serviceOf('web', VIP, { ...spec, clusterIPs: [VIP, '172.30.1.999'] }, more))
  cluster.put(sliceOf('web', [endpoint('fd00:10::5'), A]))
  for (const ip of [VIP, EXTERNAL, '198.51.100.8']) expect(await reached(ip)).toBe(`${A}:8080`)
  await daemon.until(() => refusals('EndpointSlice ns/web-1').length > 0)
  expect(refusals('Service ns/web').join()).toMatch(/externalIPs/)
  await eventually(() => eventsOf('ServiceRefused').length > 0)
})

it('F35: a port that changes its protocol, its name or its target is what it is now', async () => {
  const http = { name: 'http', port: 80, protocol: 'TCP' }
  const dns = { name: 'dns', port: 53, protocol: 'UDP' }
  const targets = (first: number, second: number) => ({
    ports: [
      { ...http, port: first },
      { ...dns, port: second },
    ],
  })
  cluster.put(serviceOf('web', VIP, { ports: [http, dns] }), sliceOf('web', [A], targets(8080, 5353)))
  expect(await reached(VIP)).toBe(`${A}:8080`)
  expect(await reached(VIP, { protocol: 'UDP', port: 53 })).toBe(`${A}:5353`)
  cluster.put(
    serviceOf('web', VIP, {
      ports: [
        { ...http, name: 'dns', protocol: 'UDP' },
        { ...dns, name: 'http', protocol: 'TCP' },
      ],
    }),
  )
  cluster.put(
    sliceOf('web', [A], {
      ports: [
        { ...http, port: 8081 },
        { ...dns, port: 5354 },
      ],
    }),
  )
  expect(await reached(VIP, { protocol: 'UDP' })).toBe(`${A}:5354`)
  expect(await reached(VIP, { port: 53 })).toBe(`${A}:8081`)
  expect(await reached(VIP)).toBe('REJECT')
})
