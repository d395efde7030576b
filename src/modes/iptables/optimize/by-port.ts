import type { XtMatch, XtPorts, XtRule } from '../../../kernel/xt/rule.ts'
import type { XtPlace } from '../../../kernel/xt/scope.ts'
import type { Protocol } from '../../../model/service.ts'
import { PROTOCOLS } from '../../xt-common/rules-parts.ts'
import type { Tree } from './by-address.ts'

/*
 * Rules about single destination ports, divided by ranges of ports, because iptables has no mask over ports.
 * The range is the default of API servers; ports outside of it stay in the list.
 */

export type PortProtocol = Extract<Protocol, 'TCP' | 'UDP'>

const FIRST_PORT = 30_000
const LAST_PORT = 32_767
/** The size of the 16 outer ranges; each has 4 parts. */
const OUTER = 173
const INNER = 44

export function portTree(place: XtPlace, prefix: string, protocol: PortProtocol): Tree {
  const chain = (range: Range, rules: readonly XtRule[] = []): Tree['root'] => {
    return { ...place, name: rangeName(prefix, range), rules, last: [] }
  }
  const all: Range = { from: FIRST_PORT, to: LAST_PORT }
  const ways = (ranges: readonly Range[]): readonly XtRule[] =>
    ranges.map(range => ({
      protocol: PROTOCOLS[protocol],
      matches: [atPorts(protocol, range)],
      target: { kind: 'goto', chain: rangeName(prefix, range) },
    }))
  const outer = split(all, OUTER)
  const chains = outer.flatMap(range => {
    const inner = split(range, INNER)
    return [...inner.map(leaf => chain(leaf)), chain(range, ways(inner))]
  })
  return { root: chain(all, ways(outer)), chains }
}

export function portWay(tree: Tree, protocol: PortProtocol): XtRule {
  return {
    protocol: PROTOCOLS[protocol],
    matches: [atPorts(protocol, { from: FIRST_PORT, to: LAST_PORT })],
    target: { kind: 'jump', chain: tree.root.name },
  }
}

/** Returns the chain for a rule; undefined when the rule is not about one single port of the range. */
export function portLeaf(prefix: string, protocol: PortProtocol, rule: XtRule): string | undefined {
  if (rule.protocol?.number !== PROTOCOLS[protocol].number || rule.protocol.inverted) return undefined
  const ports = rule.matches.flatMap(portsOf)[0]
  if (ports === undefined || ports.inverted || ports.from !== ports.to) return undefined
  const port = ports.from
  if (port < FIRST_PORT || port > LAST_PORT) return undefined
  const outer = around({ from: FIRST_PORT, to: LAST_PORT }, OUTER, port)
  return rangeName(prefix, around(outer, INNER, port))
}

interface Range {
  readonly from: number
  readonly to: number
}

function portsOf(match: XtMatch): readonly XtPorts[] {
  if (match.kind !== 'tcp' && match.kind !== 'udp') return []
  return match.destinationPorts === undefined ? [] : [match.destinationPorts]
}

function atPorts(protocol: PortProtocol, { from, to }: Range): XtMatch {
  return { kind: protocol === 'TCP' ? 'tcp' : 'udp', destinationPorts: { from, to, inverted: false } }
}

function split(range: Range, size: number): readonly Range[] {
  const count = Math.ceil((range.to - range.from + 1) / size)
  return Array.from({ length: count }, (_, at) => around(range, size, range.from + at * size))
}

/** Returns the one of equal parts of a range that contains a port. */
function around(range: Range, size: number, port: number): Range {
  const from = port - ((port - range.from) % size)
  return { from, to: Math.min(range.to, from + size - 1) }
}

function rangeName(prefix: string, { from, to }: Range): string {
  return `${prefix}-${from}-${to}`
}
