import { PROTOCOL_NUMBERS } from '../../base/ip-packet.ts'
import { NFT_CT_MARK, NFT_NAT_SNAT, NFT_REJECT_TCP_RST } from '../../kernel/nft/constants.ts'
import { registerNumber } from '../../kernel/nft/expression-attributes.ts'
import { EXPRESSIONS, REDIR } from '../../kernel/nft/schema.ts'
import { attributesOf } from '../../kernel/xt/expressions.ts'
import { load } from './expression.ts'
import type { ClassMachine, Effect } from './machine.ts'
import { knownOf, store, translate } from './random.ts'
import { BeyondEvaluator, type Known, type Of } from './values.ts'

/* Expressions of nf_tables that kprobe does not write, as other programs have them in their rules. */

type Run = (machine: ClassMachine) => Effect

/** Gives what an expression does; undefined for one that is beyond the evaluator. */
export function foreignRun(expression: Of<'unknown'>): Run | undefined {
  switch (expression.name) {
    case 'immediate': {
      const { dreg, data } = attributesOf(EXPRESSIONS.immediate, expression) ?? {}
      const [register, value] = [registerNumber(dreg), data?.value]
      if (register === undefined || value === undefined) return undefined
      return machine => store(machine, register, value)
    }
    case 'reject': {
      const { type } = attributesOf(EXPRESSIONS.reject, expression) ?? {}
      return machine => rejected(machine, type === NFT_REJECT_TCP_RST)
    }
    case 'notrack':
      return untrack
    case 'masq':
      return () => ({ kind: 'masquerade' })
    case 'redir': {
      const { portMin, portMax = portMin } = attributesOf(REDIR, expression) ?? {}
      return machine => redirect(machine, portOf(machine, portMin, portMax))
    }
    case 'nat':
      return natOf(expression)
    case 'ct': {
      const { key, sreg } = attributesOf(EXPRESSIONS.ct, expression) ?? {}
      const register = registerNumber(sreg)
      if (key !== NFT_CT_MARK || register === undefined) return undefined
      return its => {
        const machine = its
        if (machine.isTracked) machine.connectionMark = registerOf(machine, register, 4)
        return 'next'
      }
    }
    default:
      return undefined
  }
}

/** The kernel drops other packets that a rule rejects with a reset. */
function rejected(machine: ClassMachine, isReset: boolean): Effect {
  const protocol = machine.known('protocol')
  if (isReset && protocol !== String.fromCharCode(PROTOCOL_NUMBERS.TCP))
    throw new BeyondEvaluator('cannot trace a reset of packets that are not TCP')
  return { kind: 'reject' }
}

/** Connection tracking passes by packets that are marked before it sees them. */
export function untrack(machine: ClassMachine): Effect {
  const its = machine
  its.untracked ||= !its.isTracked
  return 'next'
}

/** Sends packets to an address of this node: which one follows from the device that they come in by. */
export function redirect(machine: ClassMachine, port: Known | undefined): Effect {
  const address = machine.addressLength === 4 ? '\x7f\0\0\x01' : `${'\0'.repeat(15)}\x01`
  return translate(machine, address, port)
}

function natOf(expression: Of<'unknown'>): Run | undefined {
  const values = attributesOf(EXPRESSIONS.nat, expression)
  if (values === undefined) return undefined
  const { type, addressMin, addressMax = addressMin, portMin, portMax = portMin } = values
  return machine => {
    if (addressMin !== addressMax) throw new BeyondEvaluator('cannot trace one of several addresses')
    const register = registerNumber(addressMin)
    const address = register === undefined ? undefined : registerOf(machine, register, machine.addressLength)
    if (type === NFT_NAT_SNAT) {
      if (typeof address !== 'string') throw new BeyondEvaluator('cannot trace the address of this snat')
      return machine.translateSource(address)
    }
    const to = address ?? machine.known('destination')
    if (to === undefined) throw new BeyondEvaluator('cannot trace a translation of several addresses')
    return translate(machine, to, portOf(machine, portMin, portMax))
  }
}

function portOf(machine: ClassMachine, min?: number, max?: number): Known | undefined {
  if (min !== max) throw new BeyondEvaluator('cannot trace one of several ports')
  const register = registerNumber(min)
  return register === undefined ? undefined : registerOf(machine, register, 2)
}

function registerOf(machine: ClassMachine, register: number, length: number): Known {
  return knownOf(load(machine, register, length), 'a value', length, machine)
}
