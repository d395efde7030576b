import { unreachable } from '../../base/errors.ts'
import { type Octets, readU32host, u32host } from '../../base/octets.ts'
import { NFT_SET_EVAL, NFT_SET_INTERVAL } from '../../kernel/nft/constants.ts'
import { scaledHash } from '../../kernel/nft/jhash.ts'
import { COMMENT_MATCH, type Expression } from '../../kernel/nft/state.ts'
import { lookupRange } from './intervals.ts'
import type { ClassMachine, Effect } from './machine.ts'
import { compareRolled, eachRolled, found, knownOf, lookupRolled, store, translate } from './random.ts'
import { splitCompare, splitLookup } from './split.ts'
import { BeyondEvaluator, chosenTo, isChoice, type Of, type Value, type Word } from './values.ts'

/**
 * Evaluates an expression. Throws for an expression that kprobe does not write, and for reading a register that the
 * rule has not written.
 */
export function evaluate(machine: ClassMachine, expression: Expression): Effect {
  switch (expression.kind) {
    case 'payload': {
      const { base, offset, length, dreg } = expression
      return store(machine, dreg, machine.header(base, offset, length))
    }
    case 'meta':
      return store(machine, expression.dreg, machine.meta(expression.key))
    case 'meta-set':
      machine.setMeta(expression.key, knownOf(load(machine, expression.sreg, 4), 'a mark', 4, machine))
      return 'next'
    case 'ct':
      return store(machine, expression.dreg, machine.conntrack(expression.key))
    case 'cmp':
      return compare(machine, expression)
    case 'bitwise':
      return bitwise(machine, expression)
    case 'lookup':
      return lookup(machine, expression)
    case 'verdict':
      return { kind: 'verdict', verdict: expression.verdict }
    case 'numgen':
      return numgen(machine, expression)
    case 'jhash':
      return hash(machine, expression)
    case 'dnat':
      return dnat(machine, expression)
    case 'masquerade':
    case 'reject':
      return { kind: expression.kind }
    case 'fib':
      return store(machine, expression.dreg, machine.addressType(expression.flags))
    case 'dynset':
      return dynset(machine, expression)
    case 'counter':
    case 'log':
      return 'next'
    case 'limit':
      throw new BeyondEvaluator('cannot trace a limit: what it matches depends on other packets')
    case 'ipset':
      throw new BeyondEvaluator(`cannot trace the ipset ${expression.set}`)
    case 'match':
      // A comment matches every packet.
      if (expression.name === COMMENT_MATCH) return 'next'
      throw new BeyondEvaluator(`cannot trace the match ${expression.name} of xtables`)
    case 'target':
      throw new BeyondEvaluator(`cannot trace the target ${expression.name} of xtables`)
    case 'unknown':
      throw new BeyondEvaluator(`cannot trace the expression ${expression.name}`)
    default:
      return unreachable(expression)
  }
}

/** Reads registers. The last word is whole where a part of a field is among them. */
export function load({ registers }: ClassMachine, first: number, length: number): Value {
  const words: Word[] = []
  for (let at = first; at * 4 < first * 4 + length; at++) {
    const word = registers[at]
    if (word === undefined) throw new BeyondEvaluator(`register ${at} is read before it is written`)
    words.push(word)
  }
  return words.every(word => typeof word === 'string') ? words.join('').slice(0, length) : words
}

function numgen(machine: ClassMachine, { modulus, offset = 0, dreg }: Of<'numgen'>): Effect {
  const number = machine.random(modulus)
  if (number !== undefined) return store(machine, dreg, u32host(number + offset))
  const effect = store(machine, dreg, [machine.roll(modulus, offset)])
  return machine.single === undefined ? effect : eachRolled(machine, () => effect)
}

/** Counts as a random number for a class of clients; a single packet has one hash. */
function hash(machine: ClassMachine, expression: Of<'jhash'>): Effect {
  const { sreg, length, modulus, seed, offset = 0, dreg } = expression
  if (machine.single === undefined) return store(machine, dreg, [machine.roll(modulus, offset)])
  const value = load(machine, sreg, length)
  if (typeof value !== 'string') throw new BeyondEvaluator('cannot trace a hash of several values')
  return store(machine, dreg, u32host(scaledHash(value, seed, modulus) + offset))
}

function compare(machine: ClassMachine, expression: Of<'cmp'>): Effect {
  const { op, sreg, data } = expression
  const value = load(machine, sreg, data.length)
  if (typeof value === 'string') return (value === data) === (op === 'eq') ? 'next' : 'break'
  if (value.some(isChoice))
    return compareRolled(machine, value, { op, data, again: copy => compare(copy, expression) })
  return splitCompare(machine, value, expression)
}

function bitwise(machine: ClassMachine, { sreg, dreg, mask, xor }: Of<'bitwise'>): Effect {
  const value = load(machine, sreg, mask.length)
  if (typeof value !== 'string') return store(machine, dreg, maskedWords(value, mask, xor))
  return store(machine, dreg, masked(value, mask, xor))
}

function masked(value: Octets, mask: Octets, xor: Octets): Octets {
  // Nearly all are numbers of 32 bits.
  if (value.length === 4) return u32host(((readU32host(value) & readU32host(mask)) ^ readU32host(xor)) >>> 0)
  let result = ''
  for (let at = 0; at < value.length; at++) {
    result += String.fromCharCode((value.charCodeAt(at) & mask.charCodeAt(at)) ^ xor.charCodeAt(at))
  }
  return result
}

function maskedWords(words: readonly Word[], mask: Octets, xor: Octets): readonly Word[] {
  return words.map((word, index): Word => {
    const [and, with_] = [mask, xor].map(octets => octets.slice(index * 4, index * 4 + 4).padEnd(4, '\0'))
    if (and === undefined || with_ === undefined) return word
    if (typeof word === 'string') return masked(word, and, with_)
    if (isChoice(word)) return chosenTo(word, octets => masked(octets, and, with_))
    if (/[^\0]/.test(with_)) throw new BeyondEvaluator('cannot trace a field of the packet with changed bits')
    return { ...word, mask: masked(word.mask, and, '\0\0\0\0') }
  })
}

function lookup(machine: ClassMachine, expression: Of<'lookup'>): Effect {
  const { set, sreg } = expression
  const { sets } = machine
  const { keyLength, flags } = sets.setOf(set)
  const key = load(machine, sreg, keyLength)
  machine.single?.look(sets, set, key)
  if ((flags & NFT_SET_INTERVAL) !== 0) return lookupRange(machine, key, expression)
  if (typeof key !== 'string' && key.some(isChoice)) {
    const again = (copy: ClassMachine) => lookup(copy, expression)
    if ((flags & NFT_SET_EVAL) !== 0) return eachRolled(machine, again)
    return lookupRolled(machine, key, { expression, again })
  }
  const remembered = machine.remembered(set, key)
  if (remembered !== undefined) return found(machine, expression, remembered.data)
  if (typeof key !== 'string') return splitLookup(machine, key, expression)
  return found(machine, expression, sets.find(set, key))
}

function dnat(machine: ClassMachine, { addressReg, portReg }: Of<'dnat'>): Effect {
  const { addressLength } = machine
  const address = knownOf(load(machine, addressReg, addressLength), 'a destination', addressLength, machine)
  const port = portReg === undefined ? undefined : knownOf(load(machine, portReg, 2), 'a port', 2, machine)
  return translate(machine, address, port)
}

function dynset(machine: ClassMachine, expression: Of<'dynset'>): Effect {
  const { op, set, keyReg, dataReg, timeoutMs } = expression
  const { keyLength, dataLength = 0 } = machine.sets.setOf(set)
  const key = load(machine, keyReg, keyLength)
  if (typeof key !== 'string' && key.some(isChoice))
    return eachRolled(machine, copy => dynset(copy, expression))
  const data =
    dataReg === undefined
      ? ''
      : knownOf(load(machine, dataReg, dataLength), 'data of an element', dataLength, machine)
  const { rolled } = machine
  return machine.write({ op, set, key, data, rolled, timeoutMs }) ? 'next' : 'break'
}
