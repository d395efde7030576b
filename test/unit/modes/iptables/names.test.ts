import { createHash } from 'node:crypto'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Touched } from '../../../../src/kernel/nft/monitor.ts'
import { compileRule } from '../../../../src/kernel/xt/compile.ts'
import { fixedChains, jumpsOf } from '../../../../src/modes/iptables/chains.ts'
import { rulesOfService } from '../../../../src/modes/iptables/render.ts'
import { DEFAULT_IPTABLES_OPTIONS } from '../../../../src/modes/iptables/settings.ts'
import { staticsOf } from '../../../../src/modes/iptables/state.ts'
import {
  base32Hash,
  chainNames,
  endpointChain,
  isOurChain,
  isServiceChain,
  KUBE_CHAINS,
  namedPrefixOf,
  OtherChains,
  portChains,
  touchesUs,
} from '../../../../src/modes/xt-common/layout.ts'
import { table } from '../../../support/frontends.ts'
import { everyKind } from '../../../support/services.ts'

const ALPHABET = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567'

describe('names of chains', () => {
  it('are those of kube-proxy', () => {
    expect(portChains(KUBE_CHAINS, 'ns1/svc1:p80', 'TCP')).toEqual({
      svc: 'KUBE-SVC-XPGD46QRK7WJZT7O',
      svl: 'KUBE-SVL-XPGD46QRK7WJZT7O',
      ext: 'KUBE-EXT-XPGD46QRK7WJZT7O',
      fw: 'KUBE-FW-XPGD46QRK7WJZT7O',
    })
    expect(portChains(KUBE_CHAINS, 'default/kubernetes:https', 'TCP').svc).toBe('KUBE-SVC-NPX46M4PTMTKRN6Y')
    const endpoint = { displayName: 'ns1/svc1:p80', protocol: 'TCP', ipPort: '10.180.0.1:80' } as const
    expect(endpointChain(KUBE_CHAINS, endpoint)).toBe('KUBE-SEP-SXIVWICOYRO3J4NJ')
  })

  it('are the hash in base32, five bits a letter', () => {
    fc.assert(
      fc.property(fc.string(), text => {
        const digest = createHash('sha256').update(text).digest()
        const bits = [...digest].map(byte => byte.toString(2).padStart(8, '0')).join('')
        const letters = Array.from({ length: 16 }, (_, at) =>
          ALPHABET.charAt(Number.parseInt(bits.slice(5 * at, 5 * at + 5), 2)),
        )
        expect(base32Hash(text)).toBe(letters.join(''))
      }),
    )
  })
})

/** Every chain that a proxy may write, and every chain that a rule of its own leads to; with its comments. */
function written(proxy: string | undefined, optimize: boolean) {
  const names = chainNames(proxy)
  const frontends = table([...everyKind(false), ...everyKind(true)])
  const own = new Set<string>()
  const targets = new Set<string>()
  const texts: string[] = []
  for (const large of [false, true]) {
    const statics = staticsOf({ ...DEFAULT_IPTABLES_OPTIONS, names, optimize }, frontends, large)
    const services = [...frontends.services.values()].map(service => rulesOfService(service, statics))
    const chains = [...fixedChains(statics), ...services.flatMap(each => each.chains)]
    const rules = [
      ...chains.flatMap(chain => [...chain.rules, ...chain.last]),
      ...services.flatMap(each => each.entries.map(({ rule }) => rule)),
      ...jumpsOf(statics).map(({ rule }) => rule),
    ]
    for (const chain of chains) own.add(`${chain.table} ${chain.name}`)
    for (const each of services) for (const entry of each.entries) own.add(`${entry.table} ${entry.chain}`)
    for (const { target, matches } of rules) {
      if (target !== undefined && 'chain' in target) targets.add(target.chain)
      for (const match of matches) {
        if (match.kind === 'comment') texts.push(match.text)
        if (match.kind === 'recent') targets.add(match.name)
      }
    }
  }
  return { names, own: [...own], targets: [...targets], texts }
}

describe.each([false, true])('names of the chains of a named proxy, optimized: %s', optimize => {
  const red = written('red', optimize)
  const kube = written(undefined, optimize)

  it('begin with a prefix of their own, within 28 characters', () => {
    expect(red.names.prefix).toMatch(/^KP[A-Z2-7]{5}$/)
    for (const name of [...red.own.map(each => each.split(' ')[1] ?? ''), ...red.targets]) {
      expect(name.startsWith(`${red.names.prefix}-`), name).toBe(true)
      expect(name.length, name).toBeLessThanOrEqual(28)
      expect(namedPrefixOf(name)).toBe(red.names.prefix)
    }
    expect(red.texts.filter(text => text.includes('KUBE-'))).toEqual([])
  })

  it("are as many as those of kube-proxy, less its canaries, with the chain that is kubelet's otherwise", () => {
    const canaries = kube.own.filter(name => name.endsWith('-CANARY')).length
    expect(canaries).toBe(3)
    expect(red.own).toHaveLength(kube.own.length - canaries + 1)
    expect(red.own).toContain(`filter ${red.names.prefix}-FIREWALL`)
  })

  it("are its own, and nobody else's", () => {
    const blue = chainNames('blue')
    for (const [whose, other] of [
      [red, kube],
      [kube, red],
    ] as const)
      for (const each of whose.own) {
        const [name = '', chain = ''] = each.split(' ')
        const place = name === 'filter' || name === 'nat' ? name : 'mangle'
        expect(isOurChain(whose.names, place, chain), each).toBe(true)
        expect(isOurChain(other.names, place, chain), each).toBe(false)
        expect(isOurChain(blue, place, chain), each).toBe(false)
        expect(isServiceChain(other.names, place, chain), each).toBe(false)
      }
  })
})

describe('prefixes of chains', () => {
  it('are the same for the same name, and tell names apart', () => {
    const labels = Array.from({ length: 1_000 }, (_, n) => `proxy-${n}`)
    expect(new Set(labels.map(label => chainNames(label).prefix)).size).toBe(labels.length)
    expect(chainNames('red')).toEqual(chainNames('red'))
  })

  it.each(['KUBE-SERVICES', 'KUBE-SVC-ABCDEFGHIJKLMNOP', 'KPABC-SERVICES', 'KPabcde-SERVICES', 'KPABCDE'])(
    'are not seen in %s',
    name => {
      expect(namedPrefixOf(name)).toBeUndefined()
    },
  )

  it.each([
    'KPABCDE-SVC-ABCDEFGHIJKLMNO',
    'KPABCDE-HEALTH-30000',
    'KPABCDE-ELSE',
    'XKPABCDE-SERVICES',
    'KPABCDEX-SERVICES',
  ])('alone make no chain ours: %s', name => {
    const names = { ...chainNames('red'), prefix: 'KPABCDE' }
    for (const place of ['nat', 'filter', 'mangle'] as const)
      expect(isOurChain(names, place, name)).toBe(false)
  })

  it.each([
    ['nat', 'KUBE-SVC-XPGD46QRK7WJZT7'],
    ['nat', 'KUBE-SVC-XPGD46QRK7WJZT70'],
    ['mangle', 'KUBE-SERVICES'],
    ['nat', 'POSTROUTING'],
  ] as const)('make no chain of %s with the name %s kube-proxy’s', (place, name) => {
    expect(isOurChain(KUBE_CHAINS, place, name)).toBe(false)
  })
})

const RULE: Touched = {
  family: 'ip',
  table: 'nat',
  chain: 'PREROUTING',
  handle: undefined,
  targets: () => [],
}

function jumpTo(chain: string, handle: bigint) {
  const { compiled } = compileRule({ matches: [], target: { kind: 'jump', chain } }, 'ip')
  return { handle, compiled }
}

function otherChains(): OtherChains {
  const others = new OtherChains()
  const rules = [jumpTo('KUBE-SERVICES', 4n), jumpTo('DOCKER', 5n)]
  const chain = (name: string) => [name, { name, hook: undefined, rules }] as const
  const chains = new Map(['PREROUTING', 'POSTROUTING', 'KUBE-SERVICES'].map(chain))
  others.read(new Map([['ip nat', { chains }]]), (table, name) => isOurChain(KUBE_CHAINS, table, name))
  const place = { family: 'ip', table: 'nat', owner: undefined, chain: 'POSTROUTING' } as const
  others.wrote([{ ...place, verb: 'insert-rule', rule: { matches: [], target: undefined } }])
  return others
}

describe('what somebody else touched', () => {
  it.each<[string, Partial<Touched>, boolean]>([
    ['a whole table', { chain: undefined }, true],
    ['a whole table of no concern', { chain: undefined, table: 'kubesphere' }, false],
    ['a chain of ours', { chain: 'KUBE-SVC-ABCDEFGHIJKLMNOP' }, true],
    ['a chain of that name in another table', { table: 'filter', chain: 'KUBE-SVC-ABCDEFGHIJKLMNOP' }, false],
    ["kubelet's chain, which holds a rule of ours", { table: 'filter', chain: 'KUBE-FIREWALL' }, true],
    ["kubelet's canary", { table: 'mangle', chain: 'KUBE-KUBELET-CANARY' }, false],
    ['a rule that leads to us', { targets: () => ['KUBE-SERVICES'] }, true],
    ['a rule that leads elsewhere', { targets: () => ['DOCKER'] }, false],
    ['a rule of which the number alone is told, and led to us', { handle: 4n }, true],
    ['a rule of which the number alone is told, and led elsewhere', { handle: 5n }, false],
    ['a rule of a number that nobody had', { handle: 6n }, false],
    ['a rule of which the number alone is told, in a chain not known', { chain: 'INPUT', handle: 6n }, true],
    [
      'a rule of which the number alone is told, where we wrote since',
      { chain: 'POSTROUTING', handle: 5n },
      true,
    ],
  ])('concerns us or not: %s', (_, touched, concerns) => {
    expect(touchesUs({ ...RULE, ...touched }, otherChains(), KUBE_CHAINS)).toBe(concerns)
  })
})
