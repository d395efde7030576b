import type { Octets } from '../../base/octets.ts'
import type { Box } from './box.ts'
import type { Machine, SetAccess, Value } from './machine.ts'

/** A rule that packets meet. */
export interface RulePlace {
  readonly table: string
  readonly chain: string
  /** From 1; undefined for a virtual server of IPVS. */
  readonly rule: number | undefined
  readonly isOwn: boolean
}

/** What all packets have that a rule does not end for at once. */
export interface Guard {
  readonly destination: Octets | undefined
  readonly port: Octets | undefined
  readonly protocol: Octets | undefined
}

/** What a rule compares first: a destination with a port, one of them, or nothing that a packet tells. */
export type Compared = 'place' | 'address' | 'port' | 'nothing'

export function comparedBy({ destination, port }: Guard): Compared {
  if (destination === undefined) return port === undefined ? 'nothing' : 'port'
  return port === undefined ? 'address' : 'place'
}

/** A chain whose rules packets are compared with. */
export interface ComparedChain {
  readonly name: string
  readonly compared: readonly Compared[]
  readonly table: { readonly sets: SetAccess }
}

/** A class of packets that looks up an element. */
export interface Reader {
  readonly box: Box
  readonly sets: SetAccess
  readonly addressLength: number
  readonly rolled?: readonly number[] | undefined
  readonly together?: { readonly classes: readonly number[] } | undefined
}

/** Receives which elements and chains the packets of a class meet. */
export interface Noting {
  readonly followsRules: boolean
  note(reader: Reader, set: string, key: Value): void
  /** Notes that packets pass a chain. */
  noteChain(reader: Reader & Pick<Machine, 'header'>, chain: ComparedChain): void
}
