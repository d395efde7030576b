import type { NftFamily } from '../../../kernel/nft/state.ts'
import type { XtAddress, XtRule } from '../../../kernel/xt/rule.ts'
import type { XtChain, XtPlace } from '../../../kernel/xt/scope.ts'

/** A chain that sends each packet to the one chain whose entries may match it, and all the chains below it. */
export interface Tree {
  readonly root: XtChain
  readonly chains: readonly XtChain[]
}

/**
 * Rules about single destination addresses, divided by the last byte of the address: first by its low four bits, then
 * by its high ones. ClusterIPs are assigned at random or in sequence, and either way this byte is spread evenly.
 */

/**
 * Makes the chains of a tree. `levels` is the number of nibbles that it matches: 16 chains of entries with one, 256
 * with two.
 */
export function addressTree(place: XtPlace, prefix: string, levels: 1 | 2): Tree {
  const low = NIBBLES.map(nibble => leafName(prefix, nibble, 1))
  const root = chain(
    place,
    prefix,
    waysTo(place.family, low, nibble => [nibble, 0x0f]),
  )
  if (levels === 1) return { root, chains: low.map(name => chain(place, name)) }
  const inner = NIBBLES.flatMap(nibble => {
    const leaves = NIBBLES.map(high => leafName(prefix, (high << 4) | nibble, 2))
    const ways = waysTo(place.family, leaves, high => [high << 4, 0xf0])
    return [...leaves.map(name => chain(place, name)), chain(place, leafName(prefix, nibble, 1), ways)]
  })
  return { root, chains: inner }
}

/** Returns the chain for a rule about `destination`; undefined when the rule is not about one single address. */
export function addressLeaf(
  prefix: string,
  levels: 1 | 2,
  destination: XtAddress | undefined,
): string | undefined {
  if (destination === undefined || destination.inverted) return undefined
  const { ip, mask } = destination
  if (mask !== ALL_BITS.slice(0, ip.length)) return undefined
  return leafName(prefix, ip.charCodeAt(ip.length - 1), levels)
}

const ALL_BITS = '\xff'.repeat(16)
const NIBBLES = Array.from({ length: 16 }, (_, nibble) => nibble)

/**
 * Names a chain: `KUBE-SVC-IP-3F` for addresses whose last byte is 0x3f, `KUBE-SVC-IP-F` for those that end in that
 * digit.
 */
function leafName(prefix: string, byte: number, digits: 1 | 2): string {
  const value = digits === 1 ? byte & 0x0f : byte
  return `${prefix}-${value.toString(16).toUpperCase().padStart(digits, '0')}`
}

function chain(place: XtPlace, name: string, rules: readonly XtRule[] = []): Tree['root'] {
  return { ...place, name, rules, last: [] }
}

/*
 * Makes the rules that lead to chains. They use goto, because a packet that one of the chains does not match
 * matches none of the others.
 */
function waysTo(
  family: NftFamily,
  chains: readonly string[],
  bits: (nibble: number) => readonly [value: number, mask: number],
): readonly XtRule[] {
  const rest = '\0'.repeat(family === 'ip' ? 3 : 15)
  return chains.map((chain, nibble) => {
    const [value, mask] = bits(nibble)
    return {
      destination: {
        ip: rest + String.fromCharCode(value),
        mask: rest + String.fromCharCode(mask),
        inverted: false,
      },
      matches: [],
      target: { kind: 'goto', chain },
    }
  })
}
