import { expect, test } from 'vitest'
import { PersistentMap } from '../../../src/base/collections.ts'
import { formatIpPort } from '../../../src/base/ip.ts'
import { readU16be, u16be, u32host } from '../../../src/base/octets.ts'
import {
  NF_ACCEPT,
  NF_DROP,
  NF_INET_LOCAL_OUT,
  NF_INET_POST_ROUTING,
  NFT_GOTO,
  NFT_JUMP,
  RTN_LOCAL,
} from '../../../src/kernel/nft/constants.ts'
import type { ElementGroup, Expression, Rule, Table } from '../../../src/kernel/nft/state.ts'
import { DESTINATION, DESTINATION_PORT, PRIORITY, typedSet } from '../../../src/kernel/nft/userdata.ts'
import { point } from '../../../src/proof/evaluate/region.ts'
import { newLog } from '../../../src/proof/evaluate/sets.ts'
import { createTracer, type TracePacket } from '../../../src/proof/evaluate/trace.ts'
import { type Leaf, Walker } from '../../../src/proof/evaluate/walk.ts'
import { ip } from '../../support/pipeline.ts'
import { runs } from '../../support/runs.ts'
import { generator } from '../../support/walk.ts'
import {
  accept,
  address,
  drop,
  find,
  goTo,
  is,
  jump,
  mask,
  masquerade,
  port,
  readMark,
  roll,
  writeMark,
} from './expressions.ts'

/** `PROOF_SEED=N` takes other rules. */
const SEED = Number(process.env.PROOF_SEED ?? 29)
const RULESETS = runs(400, 1 / 8)

type Random = (bound: number) => number

const SPOTS = ['10.0.0.1', '10.0.0.2', '10.0.1.1', '10.0.1.2'].map(ip)
const anyRoll = (random: Random): Expression => roll(1 + random(5))
const compare = (random: Random, data: string): Expression => is(data, random(2) === 0 ? 'eq' : 'neq')

/** What follows from random numbers: comparisons, marks, lookups of data and verdicts, and of where packets go. */
const CONDITIONS: readonly ((random: Random) => readonly Expression[])[] = [
  () => [],
  random => [anyRoll(random), compare(random, u32host(random(4)))],
  random => [anyRoll(random), writeMark],
  random => [anyRoll(random), find('numbers', 0), writeMark],
  random => [readMark, mask(random(4), random(2)), compare(random, u32host(random(3)))],
  random => [address(), compare(random, (SPOTS[random(4)] ?? '').slice(0, 3 + random(2)))],
  () => [address(), port(1), find('spots', undefined)],
  () => [readMark, find('numbers', 0), writeMark],
]
const ENDS: readonly ((random: Random, further: string) => readonly Expression[])[] = [
  () => [],
  () => [drop],
  () => [accept],
  (_, further) => [jump(further)],
  (_, further) => [goTo(further)],
  random => [anyRoll(random), find('ways', 'verdict')],
  () => [readMark, find('ways', 'verdict')],
  () => [masquerade],
]
const TRANSLATE: readonly Expression[] = [
  find('places', 0),
  { kind: 'dnat', family: 'ip', addressReg: 0, portReg: 1 },
]

function anyRule(random: Random, further: string | undefined): Rule {
  const condition = CONDITIONS[random(CONDITIONS.length)]?.(random) ?? []
  const ends = further === undefined ? ENDS.slice(0, 3) : ENDS
  const translates = random(3) === 0
  const end = translates
    ? [anyRoll(random), ...TRANSLATE]
    : (ends[random(ends.length)]?.(random, further ?? '') ?? [])
  return { expressions: [...condition, ...end], comment: '' }
}

function anyTable(random: Random): Table {
  const rules = (further: string | undefined) =>
    Array.from({ length: 2 + random(4) }, () => anyRule(random, further))
  const untranslated = (its: readonly Rule[]) =>
    its.filter(({ expressions }) => expressions.every(({ kind }) => kind !== 'dnat'))
  const elements: ElementGroup = [0, 1, 2, 3].flatMap(number => {
    const key = u32host(number)
    const [spot = '', isThere] = [SPOTS[number], random(5) > 0]
    const data = `${SPOTS[random(4)]}${u16be(80 + random(2))}\0\0`
    const code = [NF_DROP, NF_ACCEPT, NFT_GOTO, NFT_JUMP][random(4)] ?? NF_DROP
    const chain = code === NFT_GOTO || code === NFT_JUMP ? 'last' : undefined
    return [
      ...(isThere ? [{ set: 'places', key, data, comment: '' }] : []),
      ...(random(2) === 0 ? [{ set: 'numbers', key, data: u32host(random(4)), comment: '' }] : []),
      ...(random(2) === 0 ? [{ set: 'ways', key, data: { code, chain }, comment: '' }] : []),
      ...(random(2) === 0
        ? [{ set: 'spots', key: `${spot}${u16be(80)}\0\0`, data: undefined, comment: '' }]
        : []),
    ]
  })
  const sets = [
    typedSet('places', { size: 64, key: [PRIORITY], data: [DESTINATION.ip, DESTINATION_PORT] }),
    typedSet('numbers', { size: 64, key: [PRIORITY], data: [PRIORITY] }),
    typedSet('ways', { size: 64, key: [PRIORITY], data: 'verdict' }),
    typedSet('spots', { size: 64, key: [DESTINATION.ip, DESTINATION_PORT] }),
  ]
  const chains = [
    {
      name: 'first',
      hook: { type: 'nat', hooknum: NF_INET_LOCAL_OUT, priority: -100 },
      rules: rules('further'),
    },
    {
      name: 'post',
      hook: { type: 'filter', hooknum: NF_INET_POST_ROUTING, priority: 0 },
      rules: untranslated(rules('last')),
    },
    { name: 'further', hook: undefined, rules: rules('last') },
    { name: 'last', hook: undefined, rules: untranslated(rules(undefined)) },
  ] as const
  return {
    family: 'ip',
    name: 'judge',
    flags: 0,
    comment: undefined,
    chains: new Map(chains.map(chain => [chain.name, chain])),
    sets: new Map(sets.map(set => [set.name, set])),
    elements: PersistentMap.from<ElementGroup>([['all', elements]]),
  }
}

const PACKET: TracePacket = {
  origin: 'process',
  protocol: 17,
  source: ip('192.0.2.1'),
  sourcePort: 1,
  destination: ip('10.0.0.1'),
  destinationPort: 80,
}

function classOf({ source, destination, destinationPort }: TracePacket) {
  return {
    source: point(source),
    sourceType: point(u32host(RTN_LOCAL)),
    interface: point('\0'.repeat(16)),
    destination: point(destination),
    destinationType: point(u32host(1)),
    protocol: point('\x11'),
    destinationPort: point(u16be(destinationPort)),
    sourcePort: point(u16be(1)),
  }
}

/** Adds up the probability of each fate. */
function summed(fates: Iterable<readonly [string, number]>): Readonly<Record<string, number>> {
  const sums = new Map<string, number>()
  for (const [fate, probability] of fates) sums.set(fate, (sums.get(fate) ?? 0) + probability)
  return Object.fromEntries([...sums].sort().map(([fate, sum]) => [fate, Number(sum.toFixed(9))]))
}

const DESTINATIONS = [...SPOTS.slice(0, 3), ip('192.0.2.9')]

/** Gives the fates of the packets of an end, with their probability. */
function fatesOf({ machine, end }: Leaf, destination: string) {
  const { rolled = [0], masquerade, probability } = machine
  const ends = machine.endpoints()
  return rolled.map((_, index) => {
    const its = ends[index] ?? `${destination}${u16be(PACKET.destinationPort)}`
    const place = formatIpPort(its.slice(0, -2), readU16be(its, its.length - 2))
    const name = end === 'endpoint' ? 'dnat' : end === 'pass' ? 'accept' : end
    return [`${name} ${place} ${masquerade}`, probability] as const
  })
}

test(`classes that roll all numbers meet what packets meet that roll one each (PROOF_SEED=${SEED})`, () => {
  const random = generator(SEED)
  let forked = 0
  for (let count = 0; count < RULESETS; count++) {
    const tables = [anyTable(random)]
    const tracer = createTracer({ tables })
    const walker = new Walker(tables, { family: 'ip', ownName: 'judge', log: newLog(), nodeIps: new Set() })
    for (const destination of DESTINATIONS) {
      const packet = { ...PACKET, destination }
      const ways = tracer.ways(packet, { localIps: new Set([PACKET.source]) })
      const expected = ways.map(({ trace, probability }) => {
        const { ip: to, port } = trace.destination
        return [`${trace.verdict} ${formatIpPort(to, port)} ${trace.masquerade}`, probability] as const
      })
      const leaves = walker.walk({ hook: 'output', box: classOf(packet) })
      const found = leaves.flatMap(leaf => fatesOf(leaf, destination))
      expect(summed(found), `ruleset ${count}`).toEqual(summed(expected))
      if (ways.length > 1) forked++
    }
  }
  expect(forked).toBeGreaterThan(RULESETS)
})
