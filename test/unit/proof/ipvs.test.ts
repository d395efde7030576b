import { describe, expect, test } from 'vitest'
import { familyOf } from '../../../src/base/ip.ts'
import { u16be } from '../../../src/base/octets.ts'
import { provable } from '../../../src/inspect/check/verify.ts'
import type { IpsetEntry } from '../../../src/kernel/ipset/state.ts'
import type { HeldServer, IpvsHeld } from '../../../src/kernel/ipvs/state.ts'
import { NF_INET_LOCAL_IN, NF_IP_PRI_NAT_SRC } from '../../../src/kernel/nft/constants.ts'
import type { AnyTable } from '../../../src/kernel/nft/state.ts'
import type { IpvsState } from '../../../src/modes/ipvs/state.ts'
import { ipvsAssumptions } from '../../../src/proof/evaluate/ipvs.ts'
import { ClassMachine } from '../../../src/proof/evaluate/machine.ts'
import { everything, point, type Region } from '../../../src/proof/evaluate/region.ts'
import { newLog, noSets } from '../../../src/proof/evaluate/sets.ts'
import { LOCAL } from '../../../src/proof/evaluate/values.ts'
import { PASS } from '../../../src/proof/meaning.ts'
import { meaningOf } from '../../../src/proof/meanings.ts'
import { Permits } from '../../../src/proof/permits.ts'
import { prove } from '../../../src/proof/prove.ts'
import { NOT_LOCAL } from '../../../src/proof/sides.ts'
import { change, computeIn, IPVS, IPVS_CHAINS, ip } from '../../support/pipeline.ts'
import { DROP, meaningConfigOf, other, rule } from '../../support/proof.ts'
import { heldOf, OWN_IPVS, proofOfIpvs, provingIpvs, tablesOfIpvs } from '../../support/proof-ipvs.ts'
import { IS_QUICK, tried } from '../../support/runs.ts'
import { LOCAL_IPS, loadScenarios, scenarioOf } from '../../support/scenario.ts'

const all = loadScenarios().filter(({ config }) => config.serviceProxyName === undefined)
/** Each change passes a part, and nearly none in `npm run ok`: the tracer follows packets through all scenarios there. */
const scenarios = tried(all.length, 1, IS_QUICK ? 1 / 12 : 1 / 4).flatMap(number => all[number - 1] ?? [])

describe.each(scenarios.map(scenario => [scenario.file, scenario] as const))('%s', (_, scenario) => {
  test.each([
    ['nftables', IPVS],
    ['iptables', IPVS_CHAINS],
  ])('IPVS mode with rules of %s does to every packet what it promises', (rules, mode) => {
    let computed = computeIn(mode, scenario.config, LOCAL_IPS)
    for (const step of scenario.steps) {
      computed = change(computed, step)
      const { state, resolved } = computed
      const kernel = { tables: tablesOfIpvs(state), held: heldOf(state) }
      const proof = proofOfIpvs(scenario.config, resolved.snapshot, kernel, rules)
      expect(proof.differences, step.title).toEqual([])
      expect(proof).toMatchObject({ wrong: 0 })
      expect(proof.classes).toBeGreaterThan(10)
    }
  })
})

interface Kernel {
  readonly tables: readonly AnyTable[]
  readonly held: IpvsHeld
}

function computedOf(file: string) {
  const { config, steps } = scenarioOf(file)
  const { resolved, state } = steps.slice(0, 1).reduce(change<IpvsState>, computeIn(IPVS, config, LOCAL_IPS))
  const kernel: Kernel = { tables: state.ruleset.tables, held: heldOf(state) }
  return { kernel, prove: (its: Kernel) => proofOfIpvs(config, resolved.snapshot, its) }
}

function withServers({ tables, held }: Kernel, servers: (its: HeldServer) => readonly HeldServer[]): Kernel {
  return { tables, held: { ...held, servers: held.servers.flatMap(servers) } }
}

const FILE = 'cluster-ip.yaml'

describe('damage is found', () => {
  const { kernel, prove } = computedOf(FILE)
  const [first] = kernel.held.servers
  const bound = kernel.held.addresses.find(its => its === first?.server.ip)
  const isFirst = (its: HeldServer) => its === first
  const changed = (change: (its: HeldServer) => readonly HeldServer[]) =>
    withServers(kernel, its => (isFirst(its) ? change(its) : [its]))
  const weighing = (weight: number, scheduler = 'rr') =>
    changed(({ server, destinations: [head, ...rest] }) => [
      {
        server: { ...server, scheduler },
        destinations: head === undefined ? [] : [{ ...head, weight }, ...rest],
      },
    ])

  test('nothing is wrong before', () => {
    expect(first?.destinations.length).toBeGreaterThan(1)
    expect(prove(kernel).wrong).toBe(0)
  })

  test.each<readonly [what: string, kernel: Kernel, kernel: RegExp]>([
    [
      'an address is not on the dummy device',
      { ...kernel, held: { ...kernel.held, addresses: kernel.held.addresses.filter(its => its !== bound) } },
      /^pass$/,
    ],
    ['a virtual server is missing', changed(() => []), /^this node itself: a device has the address/],
    ['a real server has weight 0', weighing(0), /gets 0 % instead of/],
    ['a real server has another weight for wrr', weighing(3, 'wrr'), /gets \d+ % instead of/],
    [
      'a real server is reached by direct routing',
      changed(({ server, destinations }) => [
        { server, destinations: destinations.map(its => ({ ...its, forwarding: 3 })) },
      ]),
      /^pass$/,
    ],
    [
      'a virtual server remembers clients',
      changed(({ server, destinations }) => [
        { server: { ...server, flags: server.flags | 1, timeoutS: 60 }, destinations },
      ]),
      /kept for 60 s$/,
    ],
  ])('%s', (_, damaged, expected) => {
    const { wrong, differences } = prove(damaged)
    expect(wrong).toBeGreaterThan(0)
    expect(differences[0]?.kernel).toMatch(expected)
  })

  test('an address that no Service has any more is a difference', () => {
    const address = ip('203.0.113.99')
    const { wrong, differences } = prove({
      ...kernel,
      held: { ...kernel.held, addresses: [...kernel.held.addresses, address] },
    })
    expect(wrong).toBeGreaterThan(0)
    expect(differences[0]).toMatchObject({
      name: 'no Service',
      packet: expect.stringContaining('to 203.0.113.99:'),
      expected: 'pass',
      kernel: 'this node itself: a device has the address, and no virtual server',
    })
  })

  test('another weight of rr changes nothing', () => {
    expect(prove(weighing(3)).wrong).toBe(0)
  })

  test('a set that no rule can find is unknown', () => {
    const ipsets = kernel.held.ipsets.filter(({ set }) => set.name !== 'KUBE-CLUSTER-IP')
    const { differences } = prove({ ...kernel, held: { ...kernel.held, ipsets } })
    expect(differences[0]?.kernel).toBe('unknown: cannot trace the ipset KUBE-CLUSTER-IP')
  })
})

test('a virtual server that forgets its clients is a difference', () => {
  const { kernel, prove } = computedOf('affinity.yaml')
  expect(prove(kernel).wrong).toBe(0)
  const forgetful = withServers(kernel, ({ server, destinations }) => [
    { server: { ...server, flags: 0 }, destinations },
  ])
  expect(prove(forgetful).wrong).toBeGreaterThan(0)
})

test('of the networks of an ipset that hold a source, the longest prefix decides', () => {
  const { kernel, prove } = computedOf('source-ranges.yaml')
  const with2 = (change: (entry: IpsetEntry) => readonly IpsetEntry[]) =>
    prove({
      ...kernel,
      held: {
        ...kernel.held,
        ipsets: kernel.held.ipsets.map(its =>
          its.set.type === 'hash:ip,port,net' ? { ...its, entries: its.entries.flatMap(change) } : its,
        ),
      },
    })
  const exception = (entry: IpsetEntry, bits: number): IpsetEntry => ({
    ...entry,
    prefix2: (entry.prefix2 ?? 0) + bits,
    nomatch: true,
  })
  expect(with2(entry => [entry]).wrong).toBe(0)
  // An exception of a larger network hides nothing; one of a smaller network does.
  expect(with2(entry => [entry, exception(entry, -1)]).wrong).toBe(0)
  expect(with2(entry => [exception(entry, 1), entry]).wrong).toBeGreaterThan(0)
})

test('names what it takes for granted', () => {
  const { kernel } = computedOf(FILE)
  const odd = withServers(kernel, its => [{ ...its, server: { ...its.server, scheduler: 'dh', port: 0 } }])
  expect(ipvsAssumptions(odd.held)).toEqual(
    expect.arrayContaining([
      'the scheduler dh chooses any endpoint that has a weight',
      expect.stringMatching(/:0 receives nothing$/),
    ]),
  )
})

test('the packets of another virtual server are its business', () => {
  const { kernel, prove } = computedOf(FILE)
  const [held] = kernel.held.servers
  if (held === undefined) throw new Error('no virtual server')
  const destinations = held.destinations.map(its => ({ ...its, ip: ip('198.51.100.77') }))
  const other = { server: { ...held.server, ip: ip('192.168.99.22'), port: 4444 }, destinations }
  const { wrong, assumptions } = prove({
    ...kernel,
    held: { ...kernel.held, servers: [...kernel.held.servers, other] },
  })
  expect(wrong).toBe(0)
  expect(assumptions).toContain(
    'assuming that IPVS TCP 192.168.99.22:4444 is intentional: it also matches packets that are not for Services',
  )
})

test('a virtual server of ours that no Service has any more is a difference', () => {
  const { kernel, prove } = computedOf(FILE)
  const [held] = kernel.held.servers
  if (held === undefined) throw new Error('no virtual server')
  const address = ip('203.0.113.99')
  const destinations = held.destinations.map(its => ({ ...its, ip: ip('198.51.100.77') }))
  const gone = { server: { ...held.server, ip: address }, destinations }
  const { wrong, differences } = prove({
    ...kernel,
    held: {
      ...kernel.held,
      servers: [...kernel.held.servers, gone],
      addresses: [...kernel.held.addresses, address],
    },
  })
  expect(wrong).toBeGreaterThan(0)
  expect(differences[0]).toMatchObject({
    expected: 'pass',
    rule: expect.stringMatching(/^IPVS TCP 203\.0\.113\.99:/),
  })
})

test('nat chains at input are called behind IPVS', () => {
  const objects = [service('web', '172.30.0.2', []), slice('web-1', 'web', LOCAL_IPS[0] ?? '', 8080)]
  const { resolved, state } = change(computeIn(IPVS, {}, LOCAL_IPS), { objects })
  const hook = { type: 'nat', hooknum: NF_INET_LOCAL_IN, priority: NF_IP_PRI_NAT_SRC } as const
  const input = other(hook, [rule(DROP)])
  const prove = (tables: readonly AnyTable[]) =>
    proofOfIpvs({}, resolved.snapshot, { tables, held: heldOf(state) })
  expect(prove(state.ruleset.tables).wrong).toBe(0)
  expect(prove([...state.ruleset.tables, input]).differences).toContainEqual(
    expect.objectContaining({
      name: 'default/web at 172.30.0.2:80/TCP',
      packet: expect.stringMatching(/^prerouting/),
      rule: 'ip other first, rule 1',
    }),
  )
})

const slice = (name: string, service: string, address: string, port: number) => ({
  apiVersion: 'discovery.k8s.io/v1',
  kind: 'EndpointSlice',
  metadata: { namespace: 'default', name, labels: { 'kubernetes.io/service-name': service } },
  addressType: 'IPv4',
  endpoints: [{ addresses: [address] }],
  ports: [{ name: '', port, protocol: 'TCP' }],
})
const service = (name: string, clusterIP: string, externalIPs: readonly string[]) => ({
  apiVersion: 'v1',
  kind: 'Service',
  metadata: { namespace: 'default', name },
  spec: {
    ...{ type: 'ClusterIP', clusterIP, clusterIPs: [clusterIP], ipFamilies: ['IPv4'], externalIPs },
    ports: [{ port: 80, protocol: 'TCP' }],
  },
})

test('an address of the API server is not given to a Service, whatever its port', () => {
  const binding = { ...IPVS, resolving: { ...IPVS.resolving, bindsExternalIps: true } }
  const objects = [
    service('kubernetes', '172.30.0.1', []),
    slice('kubernetes', 'kubernetes', '203.0.113.1', 6443),
    service('web', '172.30.0.2', ['203.0.113.1', '203.0.113.2']),
    slice('web-1', 'web', '10.180.1.1', 8080),
  ]
  const { resolved, state } = change(computeIn(binding, {}, LOCAL_IPS), { objects })
  const bound = heldOf(state).addresses
  expect([bound.includes(ip('203.0.113.1')), bound.includes(ip('203.0.113.2'))]).toEqual([false, true])
  const kernel = { tables: state.ruleset.tables, held: heldOf(state) }
  expect(proofOfIpvs({}, resolved.snapshot, kernel).differences).toEqual([])
})

test.each([
  ['older', 'a'],
  ['younger', 'z'],
])(
  'the port of a Service that is %s keeps its place from a health check node port at a shared address',
  (_, name) => {
    const balanced = (its: string, clusterIP: string, port: number) => ({
      ...service(its, clusterIP, []),
      spec: {
        ...{ type: 'LoadBalancer', clusterIP, clusterIPs: [clusterIP], ipFamilies: ['IPv4'] },
        ...{
          externalTrafficPolicy: 'Local',
          healthCheckNodePort: 30500,
          allocateLoadBalancerNodePorts: false,
        },
        ports: [{ port, protocol: 'TCP' }],
      },
      status: { loadBalancer: { ingress: [{ ip: '203.0.113.2' }] } },
    })
    const other = {
      ...balanced(name, '172.30.0.3', 30500),
      spec: {
        ...service(name, '172.30.0.3', []).spec,
        type: 'LoadBalancer',
        ports: [{ port: 30500, protocol: 'TCP' }],
      },
    }
    const objects = [
      balanced('m', '172.30.0.2', 80),
      slice('m-1', 'm', '10.180.1.1', 8080),
      other,
      slice(`${name}-1`, name, '10.180.1.2', 8080),
    ]
    const { resolved, state } = change(computeIn(IPVS, {}, LOCAL_IPS), { objects })
    const kernel = { tables: state.ruleset.tables, held: heldOf(state) }
    expect(
      kernel.held.servers.some(({ server }) => server.port === 30500 && server.ip === ip('203.0.113.2')),
    ).toBe(true)
    expect(proofOfIpvs({}, resolved.snapshot, kernel).differences).toEqual([])
  },
)

test('masquerading by the number of a node port is permitted at addresses of the node alone', () => {
  const web = service('web', '172.30.0.2', [])
  const ports = [{ port: 80, nodePort: 30_080, protocol: 'TCP' }]
  const objects = [
    { ...web, spec: { ...web.spec, type: 'NodePort', ports } },
    slice('web-1', 'web', '10.180.1.1', 8080),
  ]
  const { resolved } = change(computeIn(IPVS_CHAINS, {}, LOCAL_IPS), { objects })
  const meanings = meaningOf(resolved.snapshot, {
    ...meaningConfigOf({}),
    promises: provingIpvs('iptables').promises,
  })
  const ends = (destinationType: Region) =>
    meanings.flatMap(meaning => {
      if (meaning.family !== 'IPv4') return []
      const box = {
        ...{ source: point(ip('198.51.100.7')), sourceType: NOT_LOCAL, sourcePort: everything(2) },
        ...{ destination: point(ip('203.0.113.77')), destinationType, interface: everything(16) },
        ...{ destinationPort: point(u16be(30_080)), protocol: point('\x06') },
      }
      const log = newLog()
      const machine = new ClassMachine(box, noSets(log), { nodeIps: new Set(), log })
      machine.masquerade = true
      return [new Permits(meaning).fateAt({ machine, end: 'pass' }, PASS)]
    })
  expect(ends(LOCAL)).toEqual([undefined])
  expect(ends(NOT_LOCAL)).toEqual([PASS])
})

test('a kernel without IPv6 is proved by its rules of IPv4: no Service has another address there', () => {
  const { config, steps } = scenarioOf('dual-stack.yaml')
  const { resolved, state } = steps.slice(0, 1).reduce(change<IpvsState>, computeIn(IPVS, config, LOCAL_IPS))
  const { servers, ipsets, addresses } = heldOf(state)
  const ipvs = {
    servers: servers.filter(({ server }) => familyOf(server.ip) === 'IPv4'),
    ipsets: ipsets.filter(({ set }) => set.family === 'IPv4'),
    addresses: addresses.filter(its => familyOf(its) === 'IPv4'),
  }
  const { promises, owns } = provingIpvs('nftables')
  const all = meaningOf(resolved.snapshot, { ...meaningConfigOf(config), promises })
  const tables = state.ruleset.tables.filter(({ family }) => family === 'ip')
  const wrongWithout = (leftOut?: Parameters<typeof provable>[1]) =>
    prove({ meanings: provable(all, leftOut), tables, ownName: OWN_IPVS, owns, ipvs }).wrong
  expect(wrongWithout()).toBeGreaterThan(0)
  expect(wrongWithout({ family: 'IPv6', reason: 'ipv6.disable=1' })).toBe(0)
})
