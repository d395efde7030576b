import { readU32host, u16be, u32host } from '../../base/octets.ts'
import type { Expression, NftFamily } from '../../kernel/nft/state.ts'
import { type ForeignTarget, readForeignTarget } from '../../kernel/xt/foreign.ts'
import type { XtTarget } from '../../kernel/xt/rule.ts'
import { readTarget } from '../../kernel/xt/target.ts'
import { redirect, untrack } from './foreign.ts'
import type { ClassMachine, Effect } from './machine.ts'
import { translate } from './random.ts'
import { BeyondEvaluator, chosenTo, type Known } from './values.ts'

export type Run = (machine: ClassMachine) => Effect

/** Decodes a target of xtables; undefined for one that nothing follows. */
export function targetOf(
  expression: Extract<Expression, { kind: 'target' }>,
  family: NftFamily,
): Run | undefined {
  const known = readTarget({ ...expression, kind: 'unknown' }, family)
  if (known !== undefined) return knownTarget(known)
  const foreign = readForeignTarget(expression, family)
  return foreign && foreignTarget(foreign)
}

function knownTarget(target: XtTarget): Run | undefined {
  switch (target.kind) {
    case 'REJECT':
      return () => ({ kind: 'reject' })
    case 'MASQUERADE':
      return () => ({ kind: 'masquerade' })
    case 'DNAT': {
      const port = target.port === 0 ? undefined : u16be(target.port)
      return machine => translate(machine, target.ip, port)
    }
    case 'MARK':
      return machine => {
        const its = machine
        its.mark = marked(its.mark, target.mask, target.value)
        return 'next'
      }
    default:
      return undefined
  }
}

/** Clears bits, then flips others. */
function marked(held: Known, cleared: number, flipped: number): Known {
  return chosenTo(held, octets => u32host(((readU32host(octets) & ~cleared) ^ flipped) >>> 0))
}

function foreignTarget(target: ForeignTarget): Run {
  switch (target.kind) {
    case 'note':
      return () => 'next'
    case 'SNAT':
      return machine => machine.translateSource(target.ip)
    case 'MASQUERADE':
      return () => ({ kind: 'masquerade' })
    case 'REDIRECT':
      return machine => redirect(machine, target.port === undefined ? undefined : u16be(target.port))
    case 'NOTRACK':
      return untrack
    case 'CONNMARK':
      return machine => {
        const its = machine
        if (its.isTracked) changeConnectionMark(its, target)
        return 'next'
      }
  }
}

function changeConnectionMark(
  machine: ClassMachine,
  { mode, mark, connectionMask, packetMask }: Extract<ForeignTarget, { kind: 'CONNMARK' }>,
): void {
  if (mode === 'set') machine.connectionMark = marked(machine.connectionMark, connectionMask, mark)
  else if (mode === 'save') {
    const saved = numberOf(machine.mark) & packetMask
    machine.connectionMark = marked(machine.connectionMark, connectionMask, saved)
  } else machine.mark = marked(machine.mark, packetMask, numberOf(machine.connectionMark) & connectionMask)
}

function numberOf(held: Known): number {
  if (typeof held !== 'string') throw new BeyondEvaluator('cannot trace copying a mark of several values')
  return readU32host(held)
}
