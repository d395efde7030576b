import { describe, expect, it } from 'vitest'
import { PersistentMap } from '../../../src/base/collections.ts'
import type { Element, ElementGroup, Table } from '../../../src/kernel/nft/state.ts'
import { balanceOf, failsOver, outMax, weighed } from '../../../src/model/balance.ts'
import type { Findings } from '../../../src/model/fields.ts'
import type { Backend } from '../../../src/model/frontend.ts'
import type { BalancePolicy, Service } from '../../../src/model/service.ts'
import { advance, change, computeIn, ip, NFTABLES } from '../../support/pipeline.ts'
import { expectTraced } from '../../support/play-traced.ts'
import { BY_RULES } from '../../support/players.ts'
import { proofOf } from '../../support/proof.ts'
import { LOCAL_IPS, scenarioOf } from '../../support/scenario.ts'

const ANNOTATIONS = 'metadata.annotations'

function servedWith(annotations: object): Service | undefined {
  const { resolved } = change(computeIn(NFTABLES, {}, []), webOf(annotations, 0))
  return resolved.snapshot.services.get('ns1/web')
}

/** Endpoints by the nodes that they are on, each in the zone of its node's first letter. */
function weightsOf(
  nodes: readonly string[],
  policy: BalancePolicy,
  weights = '',
): readonly (number | undefined)[] {
  const balance = servedWith({
    'kprobe.io/balance': policy,
    ...(weights && { 'kprobe.io/weights': weights }),
  })?.balance
  const list = nodes.map(
    (node, at): Backend => ({ ip: ip(`10.0.0.${at}`), port: 80, local: node === 'here' }),
  )
  const traits = nodes.map(nodeName => ({
    nodeName,
    zone: nodeName.slice(0, 1),
    conditions: { ready: true, serving: true, terminating: false },
    hints: { forZones: [], forNodes: [] },
  }))
  const kept = weighed(list, traits, {
    balance: { policy, weights: balance?.weights ?? [] },
  })
  return list.map(its => {
    const found = kept.find(({ ip: address }) => address === its.ip)
    return found && (found.weight ?? 1)
  })
}

describe('annotations about balance', () => {
  it.each([
    ['nothing', {}, undefined, []],
    ['a policy', { 'kprobe.io/balance': 'maglev' }, { policy: 'maglev', weights: [] }, []],
    [
      'an unknown policy',
      { 'kprobe.io/balance': 'least' },
      { policy: 'random', weights: [] },
      ['kprobe.io/balance'],
    ],
    [
      'a zone that is drained',
      { 'kprobe.io/weights': 'zone=a:0' },
      { weights: [{ kind: 'zone', name: 'a', weight: 0 }] },
      [],
    ],
    ['a weight too large', { 'kprobe.io/weights': 'zone=a:101' }, { weights: [] }, ['kprobe.io/weights']],
    ['half a list', { 'kprobe.io/weights': 'zone=a:1,rack=b:1' }, { weights: [] }, ['kprobe.io/weights']],
    ['no text', { 'kprobe.io/weights': 7 }, { weights: [] }, ['kprobe.io/weights']],
  ])('are read: %s', (_, annotations, balance, refused) => {
    const service = servedWith(annotations)
    expect(service?.balance).toEqual(balance)
    expect(service?.refusals.map(({ field }) => field)).toEqual(
      refused.map(name => `${ANNOTATIONS}[${name}]`),
    )
  })

  it('ask for fail-over by one word', () => {
    expect(servedWith({ 'kprobe.io/fail-over': 'passive' })?.failsOver).toBe(true)
    const other = servedWith({ 'kprobe.io/fail-over': 'active' })
    expect([other?.failsOver, other?.refusals.map(({ field }) => field)]).toEqual([
      undefined,
      [`${ANNOTATIONS}[kprobe.io/fail-over]`],
    ])
  })

  it('are refused by a mode without fail-over', () => {
    const service = servedWith({ 'kprobe.io/fail-over': 'passive' })
    const findings: Findings = { kind: 'Service', key: 'ns1/web', refusals: undefined }
    const balancing = { policy: 'random', failOverRefusedBy: 'IPVS' } as const
    expect(service && failsOver(service, balancing, findings)).toBe(false)
    expect(findings.refusals?.[0]?.reason).toContain('IPVS mode has no fail-over')
  })

  it('are refused by a mode that has one way to balance', () => {
    const service = servedWith({ 'kprobe.io/balance': 'maglev', 'kprobe.io/weights': 'zone=a:3' })
    const findings: Findings = { kind: 'Service', key: 'ns1/web', refusals: undefined }
    expect(
      service && balanceOf(service, { policy: 'random', refusedBy: 'iptables' }, findings),
    ).toBeUndefined()
    expect(findings.refusals?.map(({ value }) => value)).toEqual(['maglev', 'zone=a:3'])
    expect(findings.refusals?.[0]?.reason).toContain('iptables mode has one way to balance')
  })
})

describe('weights', () => {
  it.each<[string, readonly string[], BalancePolicy, string, readonly (number | undefined)[]]>([
    ['zones', ['a1', 'b1'], 'random', 'zone=a:3,zone=b:1', [3, 1]],
    ['a node before its zone', ['a1', 'a2'], 'random', 'zone=a:3,node=a2:1', [3, 1]],
    ['no common divisor', ['a1', 'b1'], 'random', 'zone=a:30,zone=b:20', [3, 2]],
    ['zones that are not there', ['a1', 'b1'], 'random', 'zone=q:9', [1, 1]],
    ['a drained zone', ['a1', 'b1', 'b2'], 'random', 'zone=b:0', [1, undefined, undefined]],
    ['a drained list', ['b1', 'b2'], 'random', 'zone=b:0', [1, 1]],
    ['a node with its share', ['here', 'here', 'n2'], 'local-first', '', [1, 1, undefined]],
    ['a node with half its share', ['here', 'n2', 'n2', 'n2'], 'local-first', '', [3, 1, 1, 1]],
    ['a node without endpoints', ['n1', 'n2'], 'local-first', '', [1, 1]],
    [
      'a share without drained endpoints',
      ['here', 'n2', 'n2', 'n2'],
      'local-first',
      'zone=n:0',
      [1, undefined, undefined, undefined],
    ],
  ])('of %s', (_, nodes, policy, weights, expected) => {
    expect(weightsOf(nodes, policy, weights)).toEqual(expected)
  })
})

describe('silent endpoints', () => {
  it('are out one of two, and a third of more', () => {
    expect([0, 1, 2, 3, 5, 6, 9].map(outMax)).toEqual([0, 0, 1, 1, 1, 2, 3])
  })

  it.each<[string, Words]>([
    ['a third at most, the first ones', { size: 7, silent: [4, 1, 2], left: [0, 2, 3, 5, 6] }],
    ['one of two', { size: 2, silent: [1, 0], left: [0] }],
    ['never the only one', { size: 1, silent: [0], left: [0] }],
    ['never the last one that is not drained', { size: 3, silent: [0], weights: 'zone=b:0', left: [0] }],
    ['none of another protocol', { size: 3, silent: [0], protocol: 'UDP', left: [0, 1, 2] }],
    ['one that is not listed', { size: 3, silent: [9], left: [0, 1, 2] }],
    ['those of weighted slots', { size: 3, silent: [2], weights: 'zone=a:3', left: [0, 1] }],
    ['those of a table', { size: 4, silent: [2], policy: 'maglev', left: [0, 1, 3] }],
    ['none of a Service that did not ask', { size: 3, silent: [0], isAsking: false, left: [0, 1, 2] }],
  ])('get no slots, which the proof agrees with: %s', (_, words) => {
    const { left, size, silent, policy, weights, protocol = 'TCP', isAsking = true } = words
    const at = (index: number) => `10.180.0.${index + 1}`
    const annotations = {
      ...(isAsking && { 'kprobe.io/fail-over': 'passive' }),
      ...(policy && { 'kprobe.io/balance': policy }),
      ...(weights && { 'kprobe.io/weights': weights }),
    }
    const computed = change(computeIn(NFTABLES, {}, LOCAL_IPS), webOf(annotations, size))
    const endpoints = silent.map(index => ({ protocol, ip: ip(at(index)), port: 80 }))
    const { resolved, state } = advance(computed, [{ kind: 'Silent', key: 'ns1/web', value: { endpoints } }])
    const [port] = resolved.table.services.get('ns1/web')?.ports ?? []
    expect(port?.cluster.map(({ ip: address }) => address)).toEqual(left.map(index => ip(at(index))))
    const { tables } = state.ruleset
    expect(proofOf({}, resolved.snapshot, tables)).toMatchObject({ wrong: 0, unknown: 0 })
    const whole = computed.resolved.table.services.get('ns1/web')?.ports[0]?.cluster
    const isChanged = left.length !== whole?.length
    expect(proofOf({}, computed.resolved.snapshot, tables).wrong > 0).toBe(isChanged)
  })
})

/** Tables in which these slots lead where another one does. */
function tampered(
  tables: readonly Table[],
  isOne: (at: number, data: Element['data']) => boolean,
): readonly Table[] {
  const isSlot = ({ set }: Element) => set === 'endpoints-tcp'
  return tables.map(table => ({
    ...table,
    elements: PersistentMap.from(
      table.elements.entries().map(([group, elements]): [string, ElementGroup] => {
        const data = elements.findLast(isSlot)?.data
        const moved = (its: Element, at: number) =>
          isSlot(its) && isOne(at, its.data) ? { ...its, data } : its
        return [group, elements.map(moved)]
      }),
    ),
  }))
}

describe('packets and proof', () => {
  it('agree on the endpoint of a client with maglev', () => {
    expectTraced(BY_RULES, scenarioOf('nftables/balance-maglev.yaml'))
  })

  it('agree on the shares of the slots, and find a slot too many', () => {
    const scenario = scenarioOf('nftables/balance-maglev.yaml')
    const { resolved, state } = change(computeIn(NFTABLES, {}, LOCAL_IPS), scenario.steps[0] ?? NOTHING)
    const { tables } = state.ruleset
    expect(proofOf({}, resolved.snapshot, tables)).toMatchObject({ wrong: 0, unknown: 0 })
    const { differences } = proofOf(
      {},
      resolved.snapshot,
      tampered(tables, at => at > 100 && at < 200),
    )
    expect(differences[0]?.kernel).toMatch(/ gets .* instead of 25 %/)
  })

  it('find an endpoint that gets nothing, however small its share', () => {
    const web = webOf({ 'kprobe.io/weights': 'zone=b:100' }, 51)
    const { resolved, state } = change(computeIn(NFTABLES, {}, LOCAL_IPS), web)
    const { tables } = state.ruleset
    expect(proofOf({}, resolved.snapshot, tables)).toMatchObject({ wrong: 0, unknown: 0 })
    const isOfZoneA = (_: number, data: Element['data']) => String(data).startsWith(ip('10.180.0.1'))
    const { differences } = proofOf({}, resolved.snapshot, tampered(tables, isOfZoneA))
    expect(differences[0]?.kernel).toMatch(/^10\.180\.0\.1:80 gets 0 %/)
  })
})

interface Words {
  readonly size: number
  /** Positions of endpoints, as `left`. */
  readonly silent: readonly number[]
  readonly left: readonly number[]
  readonly policy?: BalancePolicy
  readonly weights?: string
  readonly protocol?: 'TCP' | 'UDP'
  readonly isAsking?: boolean
}

/** Endpoints at 10.180.0.1 and on, the first in zone a, all others in zone b. */
function webOf(annotations: object, size: number) {
  const names = { namespace: 'ns1', name: 'web' }
  const ports = [{ name: 'p80', port: 80, protocol: 'TCP' }]
  const spec = { clusterIP: '172.30.0.41', clusterIPs: ['172.30.0.41'], ports }
  const endpoints = Array.from({ length: size }, (_, at) => ({
    addresses: [`10.180.0.${at + 1}`],
    zone: at === 0 ? 'a' : 'b',
  }))
  return {
    objects: [
      { apiVersion: 'v1', kind: 'Service', metadata: { ...names, annotations }, spec },
      {
        apiVersion: 'discovery.k8s.io/v1',
        kind: 'EndpointSlice',
        metadata: { ...names, labels: { 'kubernetes.io/service-name': 'web' } },
        addressType: 'IPv4',
        endpoints,
        ports,
      },
    ],
    remove: [],
  }
}

const NOTHING = { objects: [], remove: [] }
