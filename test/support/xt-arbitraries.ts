import * as fc from 'fast-check'
import type { Octets } from '../../src/base/octets.ts'
import type { NftFamily } from '../../src/kernel/nft/state.ts'
import type { XtAddress, XtInterface, XtMatch, XtPorts, XtRule, XtTarget } from '../../src/kernel/xt/rule.ts'
import { octets } from './nft-arbitraries.ts'
import { prefixMask } from './xt-words.ts'

/**
 * Rules of iptables at random, each in the one form in which it is read back: nothing that asks nothing, no ports that
 * another range says as well, no address with bits outside its mask.
 */

export const IPSETS: readonly string[] = ['KUBE-CLUSTER-IP', 'KUBE-6-CLUSTER-IP', 'one']

const u32 = fc.nat({ max: 0xffff_ffff })
const u16 = fc.nat({ max: 0xffff })
const types = fc.nat({ max: 0xfff })
const inverted = fc.boolean()

function text(minBytes: number, maxBytes: number): fc.Arbitrary<string> {
  const unit = fc.constantFrom(...'abcXYZ019-_:/ "\'\\>.', 'é', '中')
  return fc
    .string({ unit, minLength: minBytes, maxLength: maxBytes })
    .filter(one => Buffer.byteLength(one) <= maxBytes)
}

const interfaceOf: fc.Arbitrary<XtInterface> = fc.record({
  name: fc.oneof(
    fc.string({ unit: fc.constantFrom(...'abe019.-_'), minLength: 1, maxLength: 15 }),
    fc.string({ unit: fc.constantFrom(...'abe019.-_'), maxLength: 14 }).map(prefix => `${prefix}+`),
  ),
  inverted,
})

function addressOf(family: NftFamily): fc.Arbitrary<XtAddress> {
  const length = family === 'ip' ? 4 : 16
  const mask = fc
    .oneof(
      fc.integer({ min: 1, max: length * 8 }).map(bits => prefixMask(bits, length)),
      octets(length, length),
    )
    .filter(one => /[^\0]/.test(one))
  return fc
    .record({ ip: octets(length, length), mask, inverted })
    .map(one => ({ ...one, ip: and(one.ip, one.mask) }))
}

function and(ip: Octets, mask: Octets): Octets {
  return Array.from(ip, (byte, at) => String.fromCharCode(byte.charCodeAt(0) & mask.charCodeAt(at))).join('')
}

export const ports: fc.Arbitrary<XtPorts> = fc
  .record({ from: u16, to: u16, inverted })
  .map(one => (one.from <= one.to ? one : { ...one, from: one.to, to: one.from }))
  .filter(({ from, to, inverted }) => !(from === 0 && to === 0xffff) && !(from === 0 && to !== 0 && inverted))

function portsOf(kind: 'tcp' | 'udp' | 'sctp'): fc.Arbitrary<XtMatch> {
  return fc.record(
    { kind: fc.constant(kind), sourcePorts: ports, destinationPorts: ports },
    { requiredKeys: ['kind'] },
  )
}

const unknownInfo = fc.record({ revision: fc.nat({ max: 5 }), info: octets(0, 80) })

const unknownMatch: fc.Arbitrary<XtMatch> = fc.oneof(
  fc
    .record({ name: fc.constantFrom('multiport', 'state', 'rpfilter'), rest: unknownInfo })
    .map(({ name, rest }) => ({ kind: 'unknown' as const, name, ...rest })),
  fc
    .record({ name: fc.constantFrom('limit', 'log', 'quota'), info: octets(0, 80) })
    .map(({ name, info }) => ({ kind: 'unknown' as const, name, revision: 0, info, native: true as const })),
)

function matchOf(family: NftFamily): fc.Arbitrary<XtMatch> {
  const length = family === 'ip' ? 4 : 16
  return fc.oneof(
    fc.record({ kind: fc.constant('comment' as const), text: text(0, 255) }),
    fc.record({ kind: fc.constant('conntrack' as const), states: u16.map(bits => bits & 0x1cf), inverted }),
    fc.record({ kind: fc.constant('statistic' as const), probability: u32 }),
    fc.record({
      kind: fc.constant('recent' as const),
      mode: fc.constantFrom('set' as const, 'rcheck' as const),
      name: text(1, 199),
      seconds: u32,
      reap: fc.boolean(),
    }),
    fc.record({ kind: fc.constant('mark' as const), mark: u32, mask: u32, inverted }),
    fc.record(
      {
        kind: fc.constant('addrtype' as const),
        sourceTypes: types,
        destinationTypes: types,
        sourceInverted: fc.constant(true as const),
        destinationInverted: fc.constant(true as const),
      },
      { requiredKeys: ['kind', 'sourceTypes', 'destinationTypes'] },
    ),
    fc.record({
      kind: fc.constant('set' as const),
      set: fc.constantFrom(...IPSETS),
      dimensions: fc.array(fc.constantFrom('src' as const, 'dst' as const), { minLength: 1, maxLength: 6 }),
      inverted,
    }),
    fc.record({ kind: fc.constant('nfacct' as const), name: text(1, 31) }),
    fc.record({ kind: fc.constant('physdev-is-in' as const), inverted }),
    fc.record(
      {
        kind: fc.constant('ipvs' as const),
        vproto: fc.nat({ max: 255 }),
        vaddr: fc.record({ ip: octets(length, length), mask: octets(length, length), inverted }),
        vport: u16,
      },
      { requiredKeys: ['kind', 'vaddr', 'vport'] },
    ),
    unknownMatch,
  )
}

const REJECTIONS = {
  ip: ['icmp-port-unreachable', 'icmp-admin-prohibited', 'tcp-reset'],
  ip6: ['icmp6-port-unreachable', 'icmp6-reject-route', 'tcp-reset'],
} as const

function targetOf(family: NftFamily): fc.Arbitrary<XtTarget | undefined> {
  const length = family === 'ip' ? 4 : 16
  return fc.oneof(
    fc.constant(undefined),
    fc.record({ kind: fc.constantFrom('ACCEPT' as const, 'DROP' as const, 'RETURN' as const) }),
    fc.record({ kind: fc.constantFrom('jump' as const, 'goto' as const), chain: text(1, 60) }),
    fc.record({ kind: fc.constant('REJECT' as const), with: fc.constantFrom(...REJECTIONS[family]) }),
    fc.record({ kind: fc.constant('MARK' as const), value: u32, mask: u32 }),
    fc.record({ kind: fc.constant('MASQUERADE' as const), randomFully: fc.boolean() }),
    fc.record({ kind: fc.constant('DNAT' as const), ip: octets(length, length), port: u16 }),
    fc
      .record({ name: fc.constantFrom('LOG', 'CT', 'TPROXY'), rest: unknownInfo })
      .map(({ name, rest }) => ({ kind: 'unknown' as const, name, ...rest })),
  )
}

const PROTOCOLS = { tcp: 6, udp: 17, sctp: 132 } as const

/** With a match for ports in its place, where there is one. */
export function ruleOf(family: NftFamily): fc.Arbitrary<XtRule> {
  const heads = fc.record(
    {
      inInterface: interfaceOf,
      outInterface: interfaceOf,
      protocol: fc.record({ number: fc.integer({ min: 1, max: 255 }), inverted }),
      source: addressOf(family),
      destination: addressOf(family),
    },
    { requiredKeys: [] },
  )
  const parts = fc.record({
    heads,
    matches: fc.array(matchOf(family), { maxLength: 3 }),
    target: targetOf(family),
    kind: fc.option(fc.constantFrom('tcp' as const, 'udp' as const, 'sctp' as const), { nil: undefined }),
    at: fc.nat({ max: 3 }),
  })
  return parts.chain(({ heads, matches, target, kind, at }) => {
    if (kind === undefined) return fc.constant({ ...heads, matches, target })
    const protocol = { number: PROTOCOLS[kind], inverted: false }
    return portsOf(kind).map(one => ({ ...heads, protocol, matches: matches.toSpliced(at, 0, one), target }))
  })
}
