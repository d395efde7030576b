import { describe, expect, it, test } from 'vitest'
import { PersistentMap } from '../../../src/base/collections.ts'
import { serviceTable } from '../../../src/cli/service-rows.ts'
import { damageText, programmedModes, readListening, withRelays } from '../../../src/inspect/programmed.ts'
import {
  isElsewhere,
  type KernelQuestion,
  kernelOutcome,
  outcomesOf,
} from '../../../src/inspect/why/outcome.ts'
import type { Element, Table } from '../../../src/kernel/nft/state.ts'
import type { ServiceRow } from '../../../src/modes/common/show.ts'
import { createTracer } from '../../../src/proof/evaluate/trace.ts'
import { balanced, serviceOf, sliceOf } from '../../support/objects.ts'
import {
  type Computed,
  change,
  computeIn,
  IPTABLES,
  IPVS,
  IPVS_CHAINS,
  ip,
  type Mode,
  NFTABLES,
  type Stateful,
} from '../../support/pipeline.ts'
import {
  heldModes,
  type ReadModes,
  readIptablesMode,
  readIpvsMode,
  readNftables,
  readUserspace,
} from '../../support/read-modes.ts'
import { LOCAL_IPS } from '../../support/scenario.ts'
import { USERSPACE } from '../../support/userspace-mode.ts'

const OBJECTS = [
  {
    apiVersion: 'v1',
    kind: 'Node',
    metadata: { name: 'test-node' },
    status: { addresses: [{ type: 'InternalIP', address: '192.168.0.2' }] },
  },
  serviceOf(
    'web',
    '10.96.0.1',
    ...balanced(
      {
        loadBalancerSourceRanges: ['203.0.113.0/24'],
        ports: [{ name: 'http', port: 80, nodePort: 30_080, protocol: 'TCP' }],
      },
      '198.51.100.9',
    ),
  ),
  sliceOf('web', ['10.180.0.1', '10.180.0.2', '10.180.0.3', '10.180.0.4']),
]

function stateOf<State extends Stateful>(mode: Mode<State>): Computed<State>['state'] {
  return change(computeIn(mode, {}, LOCAL_IPS), { objects: OBJECTS }).state
}

const shown = (read: ReadModes) => programmedModes(heldModes(read))
const outcomeOf = (read: ReadModes, mode: string, question: KernelQuestion) =>
  kernelOutcome(heldModes(read), mode, question)

const NFT = readNftables(stateOf(NFTABLES))
const XT = readIptablesMode(stateOf(IPTABLES))

function without(table: Table, isGone: (element: Element) => boolean): Table {
  const kept = [...table.elements.entries()].map(
    ([group, elements]) => [group, elements.filter(element => !isGone(element))] as const,
  )
  return { ...table, elements: PersistentMap.from(kept) }
}

const inSet = (set: string, key?: string) => (element: Element) =>
  element.set === set && (key === undefined || element.key === key)

function emptied(table: Table, name: string): Table {
  const chain = table.chains.get(name)
  if (chain === undefined) throw new Error(`there is no chain ${name}`)
  return { ...table, chains: new Map([...table.chains, [name, { ...chain, rules: [] }]]) }
}

function withTables(read: ReadModes, change: (table: Table) => Table): ReadModes {
  return { ...read, nftables: read.nftables.map(change), userspace: read.userspace.map(change) }
}

const problemsOf = (read: ReadModes) =>
  shown(read)
    .flatMap(({ rows }) => rows)
    .map(({ type, frontend, problem }) => `${type} ${frontend} ${problem ?? 'fine'}`)

const ALL = 'NOT REACHED from prerouting and output:'

describe('rows of nftables mode', () => {
  const LOST = ['NOT REACHED', 'NOT REACHED', 'NOT REACHED']

  it.each<[string, (table: Table) => Table, readonly string[], RegExp]>([
    [
      'an element of cluster-ips',
      table => without(table, inSet('cluster-ips')),
      ['INCOMPLETE', 'fine', 'fine'],
      /^ClusterIP 10\.96\.0\.1:80 INCOMPLETE: 10\.96\.0\.1 is missing in set cluster-ips: /,
    ],
    ['the elements of dispatch', table => without(table, inSet('dispatch')), LOST, / NOT REACHED from /],
    ['the endpoints', table => without(table, inSet('endpoints-tcp')), LOST, / NOT REACHED from /],
    [
      'the rules of the chain that balances',
      table => emptied(table, 'mod-4'),
      LOST,
      / NOT REACHED from .* after ip kube-proxy services, rule \d+$/,
    ],
  ])('are marked without %s', (_, damage, marks, text) => {
    const problems = problemsOf(withTables(NFT, table => (table.family === 'ip' ? damage(table) : table)))
    expect(problems.map(problem => /INCOMPLETE|NOT REACHED|fine/.exec(problem)?.[0])).toEqual(marks)
    expect(problems[0]).toMatch(text)
  })
})

test.each([
  ['nftables', NFT, 'kube-proxy'],
  ['userspace', readUserspace(stateOf(USERSPACE)), 'kube-proxy-userspace'],
] as const)('rows of %s mode are marked when the chain of Services is empty', (_, read, name) => {
  const damaged = withTables(read, table => emptied(table, 'services'))
  for (const problem of problemsOf(damaged))
    expect(problem).toContain(`${ALL} chain ip ${name} services is empty`)
  expect(damageText(shown(damaged))).toContain('3 of 3 frontends are not reached or incomplete')
})

describe('rows of iptables mode', () => {
  const withoutRules = (name: string, builtin: boolean) => ({
    ...XT,
    iptables: XT.iptables.map(chain =>
      chain.name === name && chain.table === 'nat' && chain.ours !== builtin
        ? { ...chain, rules: [] }
        : chain,
    ),
  })

  it('name the hook whose chain has lost its jump', () => {
    for (const problem of problemsOf(withoutRules('OUTPUT', true)))
      expect(problem).toMatch(/NOT REACHED from output: chain ip nat OUTPUT has no jump to KUBE-SERVICES$/)
  })

  it('are all there without masquerading, which is damage of its own', () => {
    expect(damageText(shown(withoutRules('POSTROUTING', true)))).toMatch(
      /^iptables mode: chain ip nat POSTROUTING has no jump to KUBE-POSTROUTING; packets reach all 3 frontends that the kernel holds$/,
    )
  })
})

describe.each([
  ['ipvs', IPVS],
  ['ipvs with --ipvs-rules=iptables', IPVS_CHAINS],
] as const)('rows of %s mode', (_, mode) => {
  const state = stateOf(mode)

  it('are marked when an address is not bound, or not recorded', () => {
    const unbound = { ...state, addresses: PersistentMap.from([...state.addresses.entries()].slice(0, 0)) }
    const problems = problemsOf(readIpvsMode(unbound))
    expect(problems[0]).toBe(
      'ClusterIP 10.96.0.1:80 NOT REACHED from prerouting: 10.96.0.1 is not an address of kube-ipvs0',
    )
    const unlisted = [...state.entries.entries()].filter(([, { set }]) => set !== 'KUBE-CLUSTER-IP')
    const unrecorded = { ...state, entries: PersistentMap.from(unlisted) }
    expect(damageText(shown(readIpvsMode(unrecorded)))).toMatch(/ClusterIP|10\.96\.0\.1:80/)
  })
})

describe('the outcome in the kernel', () => {
  const packet = {
    origin: 'interface',
    protocol: 6,
    source: ip('203.0.113.9'),
    sourcePort: 40_000,
    destination: ip('10.96.0.1'),
    destinationPort: 80,
  } as const
  const localIps = new Set(LOCAL_IPS.map(ip))
  const wanted = outcomesOf(createTracer({ tables: NFT.nftables }).ways(packet, { localIps }))
  const question: KernelQuestion = { packet, localIps, wanted }

  it('is the same where the rules are', () => {
    expect(wanted).toHaveLength(4)
    expect(outcomeOf(NFT, 'nftables', question)).toEqual({ kind: 'same' })
    expect(outcomeOf(XT, 'iptables', question)).toEqual({ kind: 'same' })
    const userspace = outcomeOf(readUserspace(stateOf(USERSPACE)), 'userspace', question)
    expect(userspace).toEqual({ kind: 'same', listener: expect.stringMatching(/:30\d{3}$/) })
  })

  it('compares the path too where the verdict is the same', () => {
    const ways = createTracer({ tables: NFT.nftables }).ways(packet, { localIps })
    const asked = { ...question, ways }
    expect(outcomeOf(NFT, 'nftables', asked)).toEqual({ kind: 'same' })
    const step = { chain: 'ip kube-proxy other', rule: 1, text: 'jump elsewhere', elements: [] }
    const others = ways.map(way => ({ ...way, trace: { ...way.trace, steps: [step] } }))
    expect(outcomeOf(NFT, 'nftables', { ...question, ways: others })).toEqual({
      kind: 'same',
      rules: expect.arrayContaining([expect.objectContaining({ text: 'jump services' })]),
    })
  })

  it('says that no rule is for the place', () => {
    const damaged = withTables(NFT, table => without(table, inSet('frontends')))
    expect(outcomeOf(damaged, 'nftables', question)).toMatchObject({
      kind: 'different',
      reason: 'no rule of nftables mode is for 10.96.0.1:80',
    })
  })

  it('is elsewhere without rules where a daemon runs, but for what no rule is needed for', () => {
    const absent = outcomeOf(XT, 'nftables', question)
    expect(isElsewhere(absent, wanted, true)).toBe(true)
    expect(isElsewhere(absent, wanted, false)).toBe(false)
    const passing = [{ verdict: 'accept', sourceReplaced: false, percent: 100 }] as const
    expect(isElsewhere(absent, passing, true)).toBe(false)
  })
})

describe('the table of Services', () => {
  const row: ServiceRow = {
    service: 'ns/web',
    type: 'ClusterIP',
    protocol: 'TCP',
    frontend: '10.96.0.1:80',
    action: 'balance',
    endpoints: ['a', 'b', 'c', 'd', 'e'],
  }

  it('shows three endpoints, and all of them when it is wide', () => {
    expect(serviceTable([row], { color: false })).toMatch(/a, b, c \+2 more$/m)
    expect(serviceTable([row], { color: false, wide: true })).toMatch(/a, b, c, d, e$/m)
  })

  it('has a column for the mode when there are two', () => {
    const rows: ServiceRow[] = [
      { ...row, mode: 'nftables' },
      { ...row, mode: 'iptables' },
    ]
    expect(serviceTable(rows.slice(0, 1), { color: false })).not.toContain('MODE')
    expect(serviceTable(rows, { color: false })).toMatch(
      /^SERVICE +MODE +TYPE.*\n.* nftables .*\n.* iptables /,
    )
  })
})

describe('which processes listen', () => {
  const place = '192.0.2.1:5000'

  it('is known before packets are followed, and worse problems stay', () => {
    const read = readUserspace(stateOf(USERSPACE))
    const problems = (held: ReturnType<typeof heldModes>) =>
      programmedModes(held).flatMap(({ rows }) => rows.map(({ problem }) => problem ?? ''))
    const silent = () => () => false
    const relayed = withRelays(heldModes(read), silent)
    expect(problems(relayed)).toEqual(problems(relayed).map(() => expect.stringMatching(/^NOT RELAYED: /)))
    const cut = withTables(read, table => ({ ...table, chains: new Map() }))
    const unreached = problems(withRelays(heldModes(cut), silent))
    expect(unreached).toEqual(unreached.map(() => expect.stringMatching(/^NOT REACHED /)))
  })

  it('is read again when the list changed during the read', () => {
    let reads = 0
    const isListening = readListening(() => {
      reads += 1
      if (reads < 3) throw new Error('the listeners of UDP changed while they were listed')
      return []
    })
    expect(isListening('TCP', place)).toBe(false)
    expect(reads).toBe(3)
  })

  it('counts as known only where the kernel lists them', () => {
    const failing = (): never => {
      throw new Error('the listeners of UDP changed while they were listed')
    }
    expect(readListening(failing)('TCP', place)).toBe(true)
    const without = readListening((_, absent) => {
      absent?.()
      return []
    })
    expect(without('UDP', place)).toBe(true)
  })
})
