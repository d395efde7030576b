import { execFileSync } from 'node:child_process'
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { chainNames } from '../../src/modes/xt-common/layout.ts'
import type { Flow, Outcome } from '../support/lab/lab.ts'
import type { KubeObject } from '../support/reference/api.ts'
import { NODE_ADDRESS, VIP } from './hand-over-clients.ts'
import { ENDPOINTS, HAS_IPTABLES, HandOver, IPTABLES_MODE, kprobe, nft } from './hand-over-rig.ts'

/* docs/decisions/0021: kprobe serves Services of a name in iptables mode, beside the real kube-proxy in either mode. */

const CHAINS = chainNames('red').prefix
const RED_VIP = '172.30.0.12'
const NAME = '--service-proxy-name=red'
const POD = '10.0.1.4'

const RED: readonly KubeObject[] = [
  {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: {
      namespace: 'ns',
      name: 'red',
      labels: { 'service.kubernetes.io/service-proxy-name': 'red' },
    },
    spec: {
      type: 'NodePort',
      clusterIP: RED_VIP,
      ports: [{ name: 'http', port: 80, nodePort: 30_090, protocol: 'TCP' }],
    },
  },
  {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      namespace: 'ns',
      name: 'red-4',
      labels: {
        'kubernetes.io/service-name': 'red',
        'service.kubernetes.io/service-proxy-name': 'red',
      },
    },
    addressType: 'IPv4',
    ports: [{ name: 'http', port: 8080, protocol: 'TCP' }],
    endpoints: [{ addresses: [POD], conditions: { ready: true } }],
  },
]

let rig: HandOver

beforeAll(async () => {
  rig = await HandOver.open()
  if (!HAS_IPTABLES) return
  rig.useIptablesNft()
  for (const object of RED) await rig.plane.api.put(object)
})

afterAll(async () => {
  await rig?.close()
})

beforeEach(() => {
  nft('flush', 'ruleset')
})

afterEach(async () => {
  await rig?.rest()
})

/** kube-proxy of a test ends when its ports are taken. */
const startRed = () =>
  rig.startKprobe([
    NAME,
    '--proxy-mode=iptables',
    '--healthz-bind-address=127.0.0.1:20256',
    '--metrics-bind-address=127.0.0.1:20249',
  ])

function saved(): readonly string[] {
  return ['iptables', 'ip6tables'].flatMap(family =>
    execFileSync(`${family}-nft-save`, { encoding: 'utf8' })
      .split('\n')
      .filter(line => /^[:*-]/.test(line))
      .map(line => `${family} ${line.replace(/ \[\d+:\d+\]$/, '')}`),
  )
}

const isOfRed = (line: string): boolean => line.includes(`${CHAINS}-`)

async function expectBothServed(): Promise<void> {
  const outside = { from: 'outside', source: '203.0.113.5', protocol: 'TCP' } as const
  const own = { from: 'node', source: NODE_ADDRESS, protocol: 'TCP' } as const
  const flows: readonly Flow[] = [
    { ...outside, destination: RED_VIP, port: 80 },
    { ...outside, destination: NODE_ADDRESS, port: 30_090 },
    { ...own, destination: RED_VIP, port: 80 },
    { ...outside, destination: VIP, port: 80, tries: 60 },
  ]
  const outcomes = await rig.lab.trace(flows)
  const led = ({ verdict, endpoints }: Outcome) => [verdict, [...endpoints.keys()].sort()]
  expect(outcomes.map(led)).toEqual([
    ['DNAT', [`${POD}:8080`]],
    ['DNAT', [`${POD}:8080`]],
    ['DNAT', [`${POD}:8080`]],
    ['DNAT', ENDPOINTS],
  ])
}

describe.skipIf(!HAS_IPTABLES).each([
  ['iptables', IPTABLES_MODE],
  ['nftables', {}],
] as const)("beside kube-proxy's mode %s", (_, config) => {
  test('each serves its own Services, and neither touches what is of the other', async () => {
    const first = await rig.startKubeProxy(config)
    const theirs = () => [...saved().filter(line => !isOfRed(line))].sort()
    const before = theirs()
    const daemon = await startRed()
    await expectBothServed()
    const ours = saved().filter(isOfRed)
    expect(ours.length).toBeGreaterThan(40)
    expect(theirs().filter(line => line.includes('KUBE-'))).toEqual(
      before.filter(line => line.includes('KUBE-')),
    )
    await first.stop()
    // A kube-proxy that starts removes chains of its own names that it does not know.
    await rig.startKubeProxy(config)
    await expectBothServed()
    expect(saved().filter(isOfRed)).toEqual(ours)
    await daemon.caughtUp()
    expect(daemon.said('repaired foreign changes')).toEqual([])
    await daemon.stop()
    const held = theirs()
    expect(kprobe('cleanup', NAME).code).toBe(0)
    expect(saved().filter(isOfRed)).toEqual([])
    expect(theirs()).toEqual(held)
  })
})

if (!HAS_IPTABLES) console.log('skipped: a named proxy in iptables mode, as iptables is not installed here')
