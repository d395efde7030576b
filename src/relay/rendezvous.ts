import { formatApiAddress, type RelayAddress } from '../api/grpc/address.ts'

interface Reader {
  /** Of the node. */
  readonly name: string
  /** Empty for none. */
  readonly zone: string
}

/**
 * The relays in the order in which a node asks them: those of its zone, then the others. Within each part (rendezvous hashing)
 * nodes spread over them evenly, and when one comes or goes, only the nodes that have it first move.
 */
export function inOrderFor({ name, zone }: Reader, relays: readonly RelayAddress[]): readonly RelayAddress[] {
  const isNear = (its: RelayAddress): number => (zone !== '' && its.zone === zone ? 1 : 0)
  return relays
    .map(its => ({
      its,
      near: isNear(its),
      weight: hash(`${name} ${formatApiAddress(its.address)}`),
    }))
    .sort((a, b) => b.near - a.near || b.weight - a.weight)
    .map(({ its }) => its)
}

/** FNV-1a with a finish that mixes the last letters, in which addresses differ, into all bits. */
function hash(text: string): number {
  let sum = 0x811c9dc5
  for (let index = 0; index < text.length; index++)
    sum = Math.imul(sum ^ text.charCodeAt(index), 0x01000193) >>> 0
  sum = Math.imul(sum ^ (sum >>> 16), 0x85ebca6b) >>> 0
  sum = Math.imul(sum ^ (sum >>> 13), 0xc2b2ae35) >>> 0
  return (sum ^ (sum >>> 16)) >>> 0
}
