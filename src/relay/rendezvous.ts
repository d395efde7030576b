import { type ApiAddress, formatApiAddress } from '../api/grpc/address.ts'

/**
 * The relays in the order in which a node asks them (rendezvous hashing): nodes spread over them evenly, and when one comes or
 * goes, only the nodes that have it first move.
 */
export function inOrderFor(nodeName: string, relays: readonly ApiAddress[]): readonly ApiAddress[] {
  return relays
    .map(address => ({ address, weight: hash(`${nodeName} ${formatApiAddress(address)}`) }))
    .sort((a, b) => b.weight - a.weight)
    .map(({ address }) => address)
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
