import { type Octets, readU32host, u16be, u32host } from '../../base/octets.ts'
import {
  NFT_PAYLOAD_TRANSPORT_HEADER,
  NFTA_FIB_F_DADDR,
  NFTA_FIB_F_SADDR,
  RTN_LOCAL,
} from '../../kernel/nft/constants.ts'
import { registerNumber } from '../../kernel/nft/expression-attributes.ts'
import type { Expression, NftFamily } from '../../kernel/nft/state.ts'
import { comparedIn } from '../../kernel/xt/expressions.ts'
import { readForeignMatch } from '../../kernel/xt/foreign.ts'
import { readMatch } from '../../kernel/xt/match.ts'
import {
  ADDRESS_TYPES,
  NFT_CMP_GT,
  NFT_CMP_GTE,
  NFT_CMP_LT,
  NFT_CMP_LTE,
  NFT_RANGE_EQ,
  NFT_RANGE_NEQ,
  XT_CONNTRACK_STATE_DNAT,
  XT_CONNTRACK_STATE_INVALID,
  XT_CONNTRACK_STATE_NEW,
  XT_CONNTRACK_STATE_SNAT,
  XT_CONNTRACK_STATE_UNTRACKED,
  XT_STATISTIC_UNITS,
  type XtMatch,
  type XtPorts,
} from '../../kernel/xt/rule.ts'
import { foreignRun } from './foreign.ts'
import type { IpvsClasses } from './ipvs.ts'
import type { ClassMachine, Effect } from './machine.ts'
import { byRegion, byRolled } from './random.ts'
import { difference, everything, includes, type Region, union } from './region.ts'
import { type Run, targetOf } from './targets.ts'
import { BeyondEvaluator, chosen, isChoice, type Known, type Value } from './values.ts'

/** A match or target of xtables, or a comparison with a range: decoded once for all classes. */
export interface Extension {
  readonly kind: 'extension'
  /** The effect is the same for each packet with the same fields, and changes neither the packet nor others. */
  readonly isPure: boolean
  /** Divides packets by a chance. */
  readonly isChance?: true
  readonly run: Run
  readonly of: Expression
}

type Decoded = Omit<Extension, 'of'>

export interface ExtensionContext {
  readonly family: NftFamily
  readonly isOwn: boolean
  readonly ipvs?: IpvsClasses | undefined
}

/** Decodes an expression; gives it as it is where it is none of these, or has options that nothing follows. */
export function decodeExtension(expression: Expression, context: ExtensionContext): Expression | Extension {
  const decoded = decode(expression, context)
  return decoded === undefined ? expression : { ...decoded, of: expression }
}

function decode(expression: Expression, context: ExtensionContext): Decoded | undefined {
  switch (expression.kind) {
    case 'match':
      return matchOf(expression, context)
    case 'target':
      return maybeImpure(targetOf(expression, context.family))
    case 'unknown':
      return comparisonOf(expression) ?? maybeImpure(foreignRun(expression))
    case 'ipset': {
      const { ipvs } = context
      return ipvs && pure(machine => ipvs.match(machine, expression))
    }
    default:
      return undefined
  }
}

function pure(run: Run): Decoded {
  return { kind: 'extension', isPure: true, run }
}

function maybeImpure(run: Run | undefined): Decoded | undefined {
  return run && impure(run)
}

function impure(run: Run): Decoded {
  return { kind: 'extension', isPure: false, run }
}

const ALWAYS: Decoded = pure(() => 'next')

function matchOf(
  expression: Extract<Expression, { kind: 'match' }>,
  context: ExtensionContext,
): Decoded | undefined {
  const known = readMatch(expression, context.family)
  if (known !== undefined) return knownMatch(known, context)
  const foreign = readForeignMatch(expression, context.family)
  switch (foreign?.kind) {
    case 'multiport': {
      const region = union(foreign.ranges.map(({ from, to }) => ({ from: u16be(from), to: u16be(to) })))
      const [source, destination] = [portIn(0, region), portIn(2, region)]
      const either: Run = not(inOrder([not(source), not(destination)]))
      const run = foreign.side === 'source' ? source : foreign.side === 'destination' ? destination : either
      return pure(foreign.inverted ? not(run) : run)
    }
    case 'statistic':
      return { ...impure(byChance(foreign.share)), isChance: true }
    case 'connmark': {
      const { mark, mask, inverted } = foreign
      return pure(machine => {
        const its = machine
        return its.isTracked ? hasMark(its, its.connectionMark, { mark, mask, inverted }) : 'break'
      })
    }
    case 'ports': {
      // Other options, such as flags, are unknown.
      const { source, destination, name } = foreign
      const beyond: Run = () => {
        throw new BeyondEvaluator(`cannot trace options of the match ${name} of xtables`)
      }
      return pure(inOrder([portsTest(0, source), portsTest(2, destination), beyond]))
    }
    case undefined:
      return undefined
  }
}

function knownMatch(match: XtMatch, { family, isOwn }: ExtensionContext): Decoded | undefined {
  switch (match.kind) {
    case 'comment':
      return ALWAYS
    case 'nfacct':
      // An object with a quota does not match every packet. Ours have none.
      return isOwn ? ALWAYS : undefined
    case 'tcp':
    case 'udp':
    case 'sctp':
      return pure(inOrder([portsTest(0, match.sourcePorts), portsTest(2, match.destinationPorts)]))
    case 'conntrack':
      return pure(machine => {
        const isMet = (match.states & statesOf(machine, match.states)) !== 0
        return isMet === match.inverted ? 'break' : 'next'
      })
    case 'statistic':
      return { ...impure(byChance(Math.min(1, match.probability / XT_STATISTIC_UNITS))), isChance: true }
    case 'mark':
      return pure(machine => hasMark(machine, machine.mark, match))
    case 'addrtype':
      // In IPv6, other types are not those of routing: a local address is a unicast address as well.
      if (family === 'ip6' && ![match.sourceTypes, match.destinationTypes].every(isOnlyLocal))
        return undefined
      return pure(
        inOrder([
          typeTest(NFTA_FIB_F_SADDR, match.sourceTypes, match.sourceInverted === true),
          typeTest(NFTA_FIB_F_DADDR, match.destinationTypes, match.destinationInverted === true),
        ]),
      )
    case 'physdev-is-in':
      // The proof of a mode that writes it assumes so.
      return isOwn ? pure(() => (match.inverted ? 'next' : 'break')) : undefined
    case 'recent':
      // Rules that are beyond the evaluator may fill the lists of other programs.
      return isOwn ? impure(recentTest(match)) : undefined
    default:
      return undefined
  }
}

function statesOf(machine: ClassMachine, asked: number): number {
  if (machine.untracked) return XT_CONNTRACK_STATE_UNTRACKED
  if (!machine.isTracked) return XT_CONNTRACK_STATE_INVALID
  const source = asked & XT_CONNTRACK_STATE_SNAT
  const changes = machine.translated ? XT_CONNTRACK_STATE_DNAT : 0
  return XT_CONNTRACK_STATE_NEW | changes | (source !== 0 && machine.isSourceChanged ? source : 0)
}

/** Types as a match has them: a bit for each RTN_*. */
function isOnlyLocal(types: number): boolean {
  return types === 0 || types === 1 << RTN_LOCAL
}

function recentTest({ mode, name, seconds }: Extract<XtMatch, { kind: 'recent' }>): Run {
  return machine => {
    const its = machine
    if (mode === 'rcheck') return its.isListed(name, seconds) ? 'next' : 'break'
    its.enlist(name)
    return 'next'
  }
}

/** Divides packets by a chance that each of them has by itself. */
function byChance(share: number): Run {
  if (share <= 0) return () => 'break'
  if (share >= 1) return () => 'next'
  const part = (chance: number, effect: 'next' | 'break') => ({
    narrowed: [],
    take: (copy: ClassMachine) => {
      copy.probability *= chance
      return effect
    },
  })
  const branches = [part(share, 'next'), part(1 - share, 'break')]
  return machine => {
    const roll = machine.random(XT_STATISTIC_UNITS)
    if (roll !== undefined) return roll < share * XT_STATISTIC_UNITS ? 'next' : 'break'
    return { kind: 'split', branches }
  }
}

interface MarkTest {
  readonly mark: number
  readonly mask: number
  readonly inverted: boolean
}

function hasMark(machine: ClassMachine, held: Known, { mark, mask, inverted }: MarkTest): Effect {
  const isMet = (octets: Octets) => ((readU32host(octets) & mask) >>> 0 === mark) !== inverted
  if (typeof held === 'string') return isMet(held) ? 'next' : 'break'
  return byRolled(
    machine,
    number => isMet(chosen(held, number)),
    its => (its ? 'next' : 'break'),
  )
}

function portsTest(offset: number, ports: XtPorts | undefined): Run {
  if (ports === undefined) return () => 'next'
  const region = [{ from: u16be(ports.from), to: u16be(ports.to) }]
  return portIn(offset, ports.inverted ? difference(everything(2), region) : region)
}

function portIn(offset: number, region: Region): Run {
  return machine => isWithin(machine, machine.header(NFT_PAYLOAD_TRANSPORT_HEADER, offset, 2), region)
}

/** `types` has bit n for RTN_* n; 0 matches every type. */
function typeTest(flags: number, types: number, inverted: boolean): Run {
  if (types === 0) return () => 'next'
  const wanted = ADDRESS_TYPES.flatMap((_, type) => ((types >> type) & 1 ? [u32host(type)] : []))
  const region = union(wanted.map(octets => ({ from: octets, to: octets })))
  const its = inverted ? difference(everything(4), region) : region
  return machine => isWithin(machine, machine.addressType(flags), its)
}

function isWithin(machine: ClassMachine, value: Value | undefined, region: Region): Effect {
  if (value === undefined) return 'break'
  const length = region[0]?.from.length ?? 0
  if (typeof value === 'string') return includes(region, value.slice(0, length)) ? 'next' : 'break'
  const [word, more] = value
  if (word === undefined || more !== undefined)
    throw new BeyondEvaluator('cannot trace a range of more than 4 octets')
  if (typeof word === 'string') return isWithin(machine, word, region)
  if (isChoice(word))
    return byRolled(
      machine,
      number => includes(region, chosen(word, number).slice(0, length)),
      its => (its ? 'next' : 'break'),
    )
  if (word.at !== 0 || word.mask !== '\xff'.repeat(length))
    throw new BeyondEvaluator(`cannot trace a range of a part of a field (${word.field})`)
  return byRegion(machine, [word.field, region], isIn => (isIn ? 'next' : 'break'))
}

function inOrder([run, ...rest]: readonly Run[]): Run {
  if (run === undefined) return () => 'next'
  if (rest.length === 0) return run
  const then = inOrder(rest)
  return machine => andThen(run(machine), machine, then)
}

function andThen(effect: Effect, machine: ClassMachine, then: Run): Effect {
  if (effect === 'next') return then(machine)
  if (effect === 'break' || effect.kind !== 'split') return effect
  const branches = effect.branches.map(its => ({
    ...its,
    take: (copy: ClassMachine) => andThen(its.take(copy), copy, then),
  }))
  return { kind: 'split', branches }
}

function not(run: Run): Run {
  const negated = (effect: Effect): Effect => {
    if (effect === 'next') return 'break'
    if (effect === 'break') return 'next'
    if (effect.kind !== 'split') return effect
    const branches = effect.branches.map(its => ({
      ...its,
      take: (copy: ClassMachine) => negated(its.take(copy)),
    }))
    return { kind: 'split', branches }
  }
  return machine => negated(run(machine))
}

/** The expression `range`, and `cmp` with an order. */
function comparisonOf(expression: Extract<Expression, { kind: 'unknown' }>): Decoded | undefined {
  const compared = comparedIn(expression)
  const register = registerNumber(compared?.register)
  if (compared === undefined || register === undefined) return undefined
  const { isRange, op, from } = compared
  const region = rangeOf(isRange, op, compared)
  if (region === undefined || from.length > 4) return undefined
  return pure(machine => {
    const word = machine.registers[register]
    if (word === undefined) throw new BeyondEvaluator(`register ${register} is read before it is written`)
    return isWithin(machine, typeof word === 'string' ? word : [word], region)
  })
}

function rangeOf(
  isRange: boolean,
  op: number,
  { from, to }: { readonly from: Octets; readonly to: Octets },
): Region | undefined {
  const all = everything(from.length)
  const upTo = all.map(its => ({ from: its.from, to }))
  const upFrom = all.map(its => ({ from, to: its.to }))
  if (isRange) {
    if (op === NFT_RANGE_EQ) return [{ from, to }]
    return op === NFT_RANGE_NEQ ? difference(all, [{ from, to }]) : undefined
  }
  if (op === NFT_CMP_LTE) return upTo
  if (op === NFT_CMP_GTE) return upFrom
  if (op === NFT_CMP_LT) return difference(all, upFrom)
  return op === NFT_CMP_GT ? difference(all, upTo) : undefined
}
