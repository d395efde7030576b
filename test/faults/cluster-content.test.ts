import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import type { Daemon } from '../support/daemon.ts'
import type { Flow, Outcome } from '../support/lab/lab.ts'
import { balanced, endpoint, serviceOf, sliceOf } from '../support/objects.ts'
import { eventually } from '../support/patience.ts'
import { Cluster, metric } from './cluster.ts'
import { listRuleset } from './kernel.ts'

const [VIP, OTHER, EXTERNAL] = ['172.30.1.1', '172.30.1.2', '198.51.100.7']
const [A, B] = ['10.0.5.1', '10.0.5.2']

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

describe('addresses and ranges', () => {
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

  const SOURCES = Array.from(
    { length: 24 },
    (_, i) => `${[10, 100, 198, 203][i % 4]}.${(i * 37) % 256}.${i}.${i + 1}`,
  ).filter(source => !source.startsWith('10.'))
  it('F32: ranges that overlap, repeat or have host bits decide as each of them alone would', async () => {
    const lists = [
      ['203.0.0.0/8', '203.1.0.0/16', '203.0.0.0/8', '198.0.0.77/9', '100.0.0.0/8', '100.64.0.0/10'],
      ['198.51.0.0/16', '198.51.100.0/24', '203.77.9.10/32'],
      Array.from({ length: 1_000 }, (_, i) => `203.${i >> 2}.${(i & 3) * 64}.5/${18 + (i % 14)}`),
      ['0.0.0.0/0', '10.0.0.0/8'],
    ]
    cluster.put(sliceOf('web', [A]))
    for (const loadBalancerSourceRanges of lists) {
      const [spec, more] = balanced({ loadBalancerSourceRanges }, EXTERNAL)
      cluster.put(serviceOf('web', VIP, spec, more))
      await cluster.converged()
      const outcomes = await cluster.lab.trace(
        SOURCES.map(source => flow(EXTERNAL, { source })),
        { tries: 1 },
      )
      const expected = SOURCES.map(source =>
        loadBalancerSourceRanges.some(range => contains(range, source)) ? `${A}:8080` : 'DROP',
      )
      expect(outcomes.map(wordsOf)).toEqual(expected)
    }
  })

  it('F36: endpoints and external addresses that lead to the node or its link are refused, and nothing reaches them', async () => {
    const bad = ['127.0.0.1', '169.254.169.254', '224.0.0.1', '0.0.0.0', '255.255.255.255']
    cluster.put(serviceOf('web', VIP, { externalIPs: ['127.0.0.1', '169.254.169.254', EXTERNAL] }))
    cluster.put(sliceOf('web', [...bad.map(ip => endpoint(ip)), A]))
    expect(await reached(VIP)).toBe(`${A}:8080`)
    cluster.put(sliceOf('web', bad))
    expect(await reached(VIP)).toBe('REJECT')
    for (const ip of bad) expect(listRuleset()).not.toContain(`${ip} . 8080`)
    await eventually(() => eventsOf('ServiceRefused').length > 0)
  })
})

describe('who has an address', () => {
  it('F33: of two Services with one external address the first has it, and the second gets it after', async () => {
    for (const [name, ip, address] of [
      ['one', VIP, A],
      ['two', OTHER, B],
    ] as const)
      cluster.put(serviceOf(name, ip, { externalIPs: [EXTERNAL] }), sliceOf(name, [address]))
    expect(await reached(EXTERNAL)).toBe(`${A}:8080`)
    cluster.remove(serviceOf('one', VIP))
    expect(await reached(EXTERNAL)).toBe(`${B}:8080`)
    cluster.put(serviceOf('one', VIP, { externalIPs: [EXTERNAL] }))
    expect(await reached(EXTERNAL)).toBe(`${B}:8080`)
    cluster.put(serviceOf('two', OTHER))
    expect(await reached(EXTERNAL)).toBe(`${A}:8080`)
    expect((await metric('kubeproxy_sync_proxy_rules_nftables_sync_failures_total')) ?? 0).toBe(0)
  })

  it('F34: a ClusterIP that moves to another Service leads there, in one step', async () => {
    cluster.put(serviceOf('one', VIP), sliceOf('one', [A]), serviceOf('two', OTHER), sliceOf('two', [B]))
    expect(await reached(VIP)).toBe(`${A}:8080`)
    cluster.put(serviceOf('one', '172.30.1.3'), serviceOf('two', VIP))
    expect(await reached(VIP)).toBe(`${B}:8080`)
    expect(await reached('172.30.1.3')).toBe(`${A}:8080`)
    expect(wordsOf((await cluster.lab.trace([flow(OTHER)]))[0])).not.toContain(':8080')
    await daemon.caughtUp()
    expect(daemon.said('sync failed; retrying')).toEqual([])
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
})

describe('slices', () => {
  it('F37: a pod that is going and one that is ready at the same address: the ready one counts, in all 24 orders', async () => {
    const parts = [
      (name: string, at: number) => serviceOf(name, `172.30.2.${at}`, { ports: TWO_PORTS }),
      (name: string, at: number) =>
        sliceOf(name, [endpoint(`10.0.6.${at}`, { ready: false, terminating: true, pod: 'old' })], {
          name: `${name}-a`,
        }),
      (name: string, at: number) =>
        sliceOf(name, [endpoint(`10.0.6.${at}`, { pod: 'new' })], { name: `${name}-b` }),
      (name: string, at: number) =>
        sliceOf(name, [endpoint(`10.0.6.${at}`, { pod: 'new' })], {
          name: `${name}-c`,
          ports: [{ name: 'admin', port: 9090, protocol: 'TCP' }],
        }),
    ]
    for (const [at, order] of permutations(parts).entries())
      for (const part of order) {
        cluster.put(part(`ghost-${at}`, at + 1))
        await new Promise(resolve => setTimeout(resolve, 5))
      }
    await cluster.converged()
    const vips = Array.from({ length: 24 }, (_, at) => `172.30.2.${at + 1}`)
    const [http, admin] = await Promise.all([80, 81].map(async port => vips.map(vip => flow(vip, { port }))))
    const outcomes = await cluster.lab.trace([...(http ?? []), ...(admin ?? [])], { tries: 4 })
    const expected = (port: number) => vips.map((_, at) => `10.0.6.${at + 1}:${port}`)
    expect(outcomes.map(wordsOf)).toEqual([...expected(8080), ...expected(9090)])
  })

  const TWO_PORTS = [
    { name: 'http', port: 80, protocol: 'TCP' },
    { name: 'admin', port: 81, protocol: 'TCP' },
  ]

  function permutations<T>(list: readonly T[]): readonly (readonly T[])[] {
    if (list.length === 0) return [[]]
    return list.flatMap((first, at) => permutations(list.toSpliced(at, 1)).map(rest => [first, ...rest]))
  }

  it('F38: nothing said of a condition means ready; slices of names, of nobody and without ports are harmless', async () => {
    cluster.put(serviceOf('web', VIP), serviceOf('shop', OTHER), sliceOf('shop', [B]))
    cluster.put(sliceOf('web', [{ addresses: [A] }]))
    cluster.put(sliceOf('web', ['10.0.5.8'], { name: 'without-ports', ports: [] }))
    cluster.put(sliceOf('web', [{ addresses: ['example.test'] }], { name: 'names', addressType: 'FQDN' }))
    cluster.put(sliceOf('nobody', ['10.0.5.7']))
    expect(await reached(VIP)).toBe(`${A}:8080`)
    cluster.put(sliceOf('shop', [A], { name: 'web-1' }))
    expect(await reached(VIP)).toBe('REJECT')
    expect(await reached(OTHER)).toBe(`${A}:8080 ${B}:8080`)
  })

  it('F39: affinity holds while it is on and its endpoint is ready, and not longer', async () => {
    const sticky = {
      sessionAffinity: 'ClientIP',
      sessionAffinityConfig: { clientIP: { timeoutSeconds: 600 } },
    }
    cluster.put(serviceOf('web', VIP, sticky), sliceOf('web', [A, B]))
    const first = await reached(VIP)
    expect([`${A}:8080`, `${B}:8080`]).toContain(first)
    expect(await reached(VIP)).toBe(first)
    const [ready, gone] = first.startsWith(A) ? [B, A] : [A, B]
    cluster.put(sliceOf('web', [ready, endpoint(gone, { ready: false })]))
    expect(await reached(VIP)).toBe(`${ready}:8080`)
    cluster.put(serviceOf('web', VIP), sliceOf('web', [A, B]))
    expect(await reached(VIP)).toBe(`${A}:8080 ${B}:8080`)
  })
})

/** Whether a range has an IPv4 address, bit by bit. */
function contains(range: string, address: string): boolean {
  const [start = '', bits] = range.split('/')
  return bitsOf(start).startsWith(bitsOf(address).slice(0, Number(bits)))
}

function bitsOf(address: string): string {
  return address
    .split('.')
    .map(part => Number(part).toString(2).padStart(8, '0'))
    .join('')
}
