import { describe, expect, it } from 'vitest'
import { PersistentMap } from '../../../src/base/collections.ts'
import { u16be } from '../../../src/base/octets.ts'
import {
  NF_INET_FORWARD,
  NF_INET_LOCAL_IN,
  NF_INET_POST_ROUTING,
  NF_INET_PRE_ROUTING,
  NFT_META_MARK,
  NFT_SET_EVAL,
  NFT_TABLE_F_DORMANT,
} from '../../../src/kernel/nft/constants.ts'
import type { AnyTable, ElementGroup, Expression, NftSet } from '../../../src/kernel/nft/state.ts'
import { meaningOf } from '../../../src/proof/meanings.ts'
import { prove } from '../../../src/proof/prove.ts'
import { change, computeIn, ip, NFTABLES } from '../../support/pipeline.ts'
import { doubtsOf, meaningConfigOf, NODE, other, proofOf, rule, webService } from '../../support/proof.ts'
import { LOCAL_IPS } from '../../support/scenario.ts'
import {
  accept,
  address,
  drop,
  find,
  is,
  isFrom,
  isPort,
  isTo,
  mask,
  masquerade,
  port,
  readMark,
  roll,
  writeMark,
} from './expressions.ts'

/** Pods of both nodes, and a pod with the address of this node. */
const [SERVICE, SLICE] = webService({
  ports: [{ name: 'sctp', port: 90, protocol: 'SCTP', nodePort: 30090 }],
  targets: [{ name: 'sctp', port: 9090, protocol: 'SCTP' }],
  endpoints: ['192.168.0.2'],
})

const OBJECTS = { objects: [NODE, SERVICE, SLICE] }
const { resolved, state } = change(computeIn(NFTABLES, {}, LOCAL_IPS), OBJECTS)
const OWN = state.ruleset.tables

const FILLS: Expression = {
  kind: 'dynset',
  op: 'update',
  set: 'ports',
  keyReg: 0,
  dataReg: undefined,
  timeoutMs: 0,
}
const proofWith = (...tables: readonly AnyTable[]) => proofOf({}, resolved.snapshot, [...OWN, ...tables])

function setOf(flags: number): NftSet {
  return {
    name: 'ports',
    flags,
    keyType: 0,
    keyLength: 2,
    dataType: undefined,
    dataLength: undefined,
    size: 0,
    timeoutMs: 0,
    userdata: '',
  }
}

const inPorts = find('ports', undefined)

describe('beside tables of other programs', () => {
  it('is proved: a chain in input sees the endpoints at addresses of the Node, and no other', () => {
    const { differences, wrong } = proofWith(other({ hooknum: NF_INET_LOCAL_IN }, []))
    expect([differences, wrong]).toEqual([[], 0])
    const closed = proofWith(other({ hooknum: NF_INET_LOCAL_IN }, [rule(...isPort(8080), drop)]))
    expect(closed.differences).toContainEqual(
      expect.objectContaining({ kernel: 'drop on the way to 192.168.0.2:8080' }),
    )
    expect(closed.differences.map(({ kernel }) => kernel).join()).not.toContain('10.180.')
  })

  it('is proved: the kernel calls no chain of a dormant table', () => {
    const drops = [rule(...isPort(80), drop)]
    const hook = { hooknum: NF_INET_PRE_ROUTING, priority: -300 }
    expect(proofWith(other(hook, drops)).wrong).toBeGreaterThan(0)
    expect(proofWith(other(hook, drops, { flags: NFT_TABLE_F_DORMANT })).wrong).toBe(0)
  })

  it('lists what reads and fills a set that packets fill', () => {
    const rules = [rule(port(), inPorts, drop), rule(port(), FILLS)]
    const sets = new Map([['ports', setOf(NFT_SET_EVAL)]])
    const { unknowns } = proofWith(other({ hooknum: NF_INET_PRE_ROUTING, priority: -300 }, rules, { sets }))
    expect(doubtsOf({ unknowns })).toEqual([
      'ip other first, rule 1: cannot trace a set that packets fill (ports)',
    ])
  })

  it('lists a lookup in a set with an element for all other keys', () => {
    const sets = new Map([['ports', setOf(0)]])
    const elements = PersistentMap.from<ElementGroup>([
      ['all', [{ set: 'ports', key: '', data: undefined, comment: '' }]],
    ])
    const hook = { hooknum: NF_INET_PRE_ROUTING, priority: -300 }
    const { unknowns } = proofWith(other(hook, [rule(port(), inPorts, drop)], { sets, elements }))
    expect(doubtsOf({ unknowns })).toContain(
      'ip other first, rule 1: cannot trace an element for all other keys (ports)',
    )
  })

  it('finds a drop in postrouting by the interface that packets came in from', () => {
    const { differences } = proofWith(
      other({ hooknum: NF_INET_POST_ROUTING }, [rule(...isFrom('eth9'), drop)]),
    )
    expect(differences).toContainEqual(expect.objectContaining({ rule: 'ip other first, rule 1' }))
  })

  it('counts what another program drops after a rule of ours translated it without a Service', () => {
    const translate = rule(
      ...isPort(9999),
      { kind: 'meta', key: NFT_META_MARK, dreg: 1 },
      { kind: 'bitwise', sreg: 1, dreg: 1, mask: '\0\0\0\0', xor: ip('10.180.0.9') },
      { kind: 'dnat', family: 'ip', addressReg: 1, portReg: undefined },
    )
    const damaged = OWN.map(table => {
      const chain = table.chains.get('services')
      if (table.family !== 'ip' || chain === undefined) return table
      const chains = new Map(table.chains).set('services', { ...chain, rules: [translate, ...chain.rules] })
      return { ...table, chains }
    })
    const drops = other({ hooknum: NF_INET_FORWARD }, [rule(...isPort(9999), drop)])
    const { differences } = proofOf({}, resolved.snapshot, [...damaged, drops])
    expect(differences).toContainEqual(
      expect.objectContaining({ name: 'no Service', kernel: 'drop on the way to 10.180.0.9:9999' }),
    )
    expect(proofWith(drops).wrong).toBe(0)
  })

  it('does not know which of two nat chains of one priority decides', () => {
    const [own] = OWN.filter(({ family }) => family === 'ip')
    const tied = [...(own?.chains.values() ?? [])].find(
      ({ hook }) => hook?.type === 'nat' && hook.hooknum === NF_INET_PRE_ROUTING,
    )
    const priority = tied?.hook?.priority ?? 0
    const at = (its: number) =>
      proofWith(
        other({ type: 'nat', hooknum: NF_INET_PRE_ROUTING, priority: its }, [rule(...isPort(80), drop)]),
      )
    expect(doubtsOf(at(priority))).toEqual([
      `ip kube-proxy ${tied?.name}: it has the priority of ip other first, and the kernel does not show their order`,
    ])
    expect(at(priority + 1)).toMatchObject({ wrong: 0, unknown: 0 })
    expect(at(priority - 1).wrong).toBeGreaterThan(0)
  })
})

/** So many rules have an index. */
const FILLERS = Array.from({ length: 20 }, (_, at) => rule(...isTo(ip(`203.0.113.${at}`)), drop))

describe('behind an index', () => {
  it.each([
    ['10.180.0.1', NF_INET_FORWARD],
    ['10.180.1.1', NF_INET_FORWARD],
    ['10.180.0.1', NF_INET_POST_ROUTING],
    ['10.180.1.1', NF_INET_POST_ROUTING],
    ['192.168.0.2', NF_INET_LOCAL_IN],
  ])('finds a rule that drops packets to %s at hook %i', (to, hooknum) => {
    const drops = rule(...isTo(ip(to)), ...isPort(8080), drop)
    const short = proofWith(other({ hooknum }, [drops]))
    expect(short.wrong).toBeGreaterThan(0)
    const long = proofWith(other({ hooknum }, [...FILLERS, drops]))
    expect(long.wrong).toBe(short.wrong)
    expect(long.differences.map(its => its.kernel)).toEqual(short.differences.map(its => its.kernel))
  })
})

describe('a rule for one endpoint of one Service', () => {
  const COUNT = 20
  const services = ['a', 'b', 'c'].map((name, at) => ({
    ...SERVICE,
    metadata: { namespace: 'ns2', name },
    spec: {
      type: 'ClusterIP',
      clusterIP: `172.30.1.${at}`,
      clusterIPs: [`172.30.1.${at}`],
      ipFamilies: ['IPv4'],
      ports: [{ port: 80, protocol: 'TCP' }],
    },
  }))
  const slices = services.map(({ metadata: { name } }, at) => ({
    ...SLICE,
    metadata: { namespace: 'ns2', name, labels: { 'kubernetes.io/service-name': name } },
    endpoints: Array.from({ length: COUNT }, (_, slot) => ({
      addresses: [`10.18${at}.1.${slot}`],
      nodeName: 'other-node',
    })),
    ports: [{ name: '', port: 8080, protocol: 'TCP' }],
  }))
  const its = change(computeIn(NFTABLES, {}, LOCAL_IPS), { objects: [NODE, ...services, ...slices] })
  const proofBeside = (...tables: readonly AnyTable[]) =>
    proofOf({}, its.resolved.snapshot, [...its.state.ruleset.tables, ...tables])
  const ODD = '10.181.1.7'
  const UNFAIR = '10.181.1.6:8080 gets 10 % instead of 5 %'
  const isOdd = isTo(ip(ODD))
  const among: readonly Expression[] = [address(), port(1), inPorts]
  const sets = {
    sets: new Map([['ports', { ...setOf(0), keyLength: 8 }]]),
    elements: PersistentMap.from<ElementGroup>([
      ['all', [{ set: 'ports', key: `${ip(ODD)}${u16be(8080)}\0\0`, data: undefined, comment: '' }]],
    ]),
  }
  const isZero = is('\0\0\0\0')
  const rolls: readonly Expression[] = [roll(5), isZero]
  const marks: readonly Expression[] = [readMark, mask(~0x4000 >>> 0, 0x4000), writeMark]

  it('is an assumption where it reads or fills a set that packets fill', () => {
    const dynamic = { sets: new Map([['ports', { ...setOf(NFT_SET_EVAL), keyLength: 4 }]]) }
    for (const hooknum of [NF_INET_FORWARD, NF_INET_POST_ROUTING]) {
      const rules = [rule(address(), inPorts, drop), rule(address(), FILLS)]
      const { wrong, differences, unknowns } = proofBeside(other({ hooknum }, rules, dynamic))
      expect([differences, wrong]).toEqual([[], 0])
      expect(doubtsOf({ unknowns })).toEqual([
        'ip other first, rule 1: cannot trace a set that packets fill (ports)',
      ])
    }
  })

  it('is not there: all is proved', () => {
    const { wrong, differences } = proofBeside()
    expect([differences, wrong]).toEqual([[], 0])
  })

  it.each([
    ['another Service', '10.180.1.7', ['10.180.1.7:8080', '10.180.1.7:8080, masqueraded']],
    ['another endpoint', '10.181.1.6', [UNFAIR, UNFAIR]],
  ])('is found: an element of ours that leads to %s', (_, other, kernel) => {
    const damaged = its.state.ruleset.tables.map(table => {
      const all = table.elements.values().flat()
      const to = (data: unknown) => typeof data === 'string' && data.startsWith(ip(ODD))
      const elements = [...all].map(element =>
        to(element.data) ? { ...element, data: `${ip(other)}${u16be(8080)}\0\0` } : element,
      )
      return { ...table, elements: PersistentMap.from<ElementGroup>([['all', elements]]) }
    })
    const { wrong, differences } = proofOf({}, its.resolved.snapshot, damaged)
    expect(differences.map(its => its.kernel)).toEqual(kernel)
    expect(differences.map(({ name }) => name)).toEqual(kernel.map(() => 'ns2/b at 172.30.1.1:80/TCP'))
    expect(wrong).toBe(4)
  })

  it.each([
    ['drops in postrouting', NF_INET_POST_ROUTING, [...isOdd, drop], 4],
    ['drops in forward', NF_INET_FORWARD, [...isOdd, drop], 2],
    ['drops by address and port', NF_INET_POST_ROUTING, [...among, drop], 4],
    ['drops some', NF_INET_POST_ROUTING, [...isOdd, ...rolls, drop], 4],
  ] as const)('is found: %s', (_, hooknum, expressions, classes) => {
    const { wrong, differences } = proofBeside(other({ hooknum }, [rule(...expressions)], sets))
    expect(differences.map(({ name }) => name)).toEqual(differences.map(() => 'ns2/b at 172.30.1.1:80/TCP'))
    expect(differences.map(({ kernel }) => kernel)).toEqual(
      differences.map(() => expect.stringContaining(`${ODD}:8080`)),
    )
    expect([wrong, differences.length]).toEqual([classes, 1])
  })

  it.each([
    ['forward', NF_INET_FORWARD, 2],
    ['postrouting', NF_INET_POST_ROUTING, 4],
  ] as const)('is found in a long chain, which has an index: %s', (_, hooknum, classes) => {
    const long = (...last: readonly Expression[]) =>
      proofBeside(other({ hooknum }, [...FILLERS, rule(...last)], sets))
    for (const last of [isOdd, [...isOdd, ...isPort(8080)], [...isPort(8080), ...isOdd], among]) {
      const { wrong, differences } = long(...last, drop)
      expect(differences.map(({ kernel }) => kernel).join()).toContain(`${ODD}:8080`)
      expect(wrong).toBe(classes)
    }
    for (const other of [isPort(8081), isPort(80), [...isOdd, ...isPort(80)]])
      expect(long(...other, drop).differences.filter(({ name }) => name !== 'no Service')).toEqual([])
  })

  it.each([
    ['in postrouting', { type: 'nat', hooknum: NF_INET_POST_ROUTING, priority: 150 }, [masquerade]],
    ['by a mark of ours in forward', { hooknum: NF_INET_FORWARD }, marks],
  ] as const)('is found: masquerades %s', (_, hook, expressions) => {
    const { differences } = proofBeside(other(hook, [rule(...isOdd, ...expressions)]))
    // A packet that is sent to the endpoint itself goes to no Service.
    expect(differences.filter(({ name }) => name !== 'no Service')).toEqual([
      expect.objectContaining({ name: 'ns2/b at 172.30.1.1:80/TCP', kernel: `${ODD}:8080, masqueraded` }),
    ])
  })

  it('is proved: accepts some', () => {
    const some = [rule(...isOdd, ...rolls, accept)]
    expect(proofBeside(other({ hooknum: NF_INET_POST_ROUTING }, some)).wrong).toBe(0)
  })

  it('lists a random number of too many values', () => {
    const rules = [rule(roll(2 ** 31), isZero, drop)]
    const { unknowns } = proofBeside(other({ hooknum: NF_INET_POST_ROUTING }, rules))
    expect(doubtsOf({ unknowns })).toContain(
      'ip other first, rule 1: cannot trace random numbers below 42949672960',
    )
  })
})

it.each([{ primary: ['primary'] }, { primary: [] }])(
  'is proved: SCTP to node ports at localhost is rejected where a relay serves them ($primary)',
  ({ primary }) => {
    const config = { nodePortAddresses: [...primary, '127.0.0.0/8', '::1/128'] }
    const relaying = { ...NFTABLES, resolving: { forwardsLocalhost: true } }
    const its = change(computeIn(relaying, config, LOCAL_IPS), OBJECTS)
    const found = (tables: readonly AnyTable[]) => {
      const meanings = meaningOf(its.resolved.snapshot, { ...meaningConfigOf(config), featureGates: {} })
      return prove({ meanings, tables, ownName: 'kube-proxy' })
    }
    const proof = found(its.state.ruleset.tables)
    expect([proof.differences, proof.wrong]).toEqual([[], 0])
    expect(proof.packets / (2 * (2 ** 64 + 2 ** 256) * 2 ** 40)).toBeCloseTo(1, 9)
    const without = change(computeIn(NFTABLES, config, LOCAL_IPS), OBJECTS).state.ruleset.tables
    expect(found(without).differences).toContainEqual(
      expect.objectContaining({ name: 'ns1/web:sctp at node port 30090/SCTP', expected: 'reject' }),
    )
  },
)
