import { type Octets, u16be, u32host } from '../../../src/base/octets.ts'
import * as nft from '../../../src/kernel/nft/constants.ts'
import type { Expression } from '../../../src/kernel/nft/state.ts'

/* Expressions of rules, whose values are in register 0 where nothing else is given. */

export const verdict = (code: number, chain?: string): Expression => ({
  kind: 'verdict',
  verdict: { code, chain },
})
export const drop = verdict(nft.NF_DROP)
export const accept = verdict(nft.NF_ACCEPT)
export const jump = (chain: string) => verdict(nft.NFT_JUMP, chain)
export const goTo = (chain: string) => verdict(nft.NFT_GOTO, chain)

const header = (base: number, offset: number, length: number, dreg = 0) =>
  ({ kind: 'payload', base, offset, length, dreg }) as const satisfies Expression
export const source = header(nft.NFT_PAYLOAD_NETWORK_HEADER, 12, 4)
export const address = (dreg = 0) => header(nft.NFT_PAYLOAD_NETWORK_HEADER, 16, 4, dreg)
export const port = (dreg = 0) => header(nft.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, dreg)

export const is = (data: Octets, op: 'eq' | 'neq' = 'eq', sreg = 0): Expression => ({
  kind: 'cmp',
  op,
  sreg,
  data,
})
export const isTo = (its: Octets): readonly Expression[] => [address(), is(its)]
export const isPort = (number: number): readonly Expression[] => [port(), is(u16be(number))]
export const isFrom = (device: string): readonly Expression[] => [
  { kind: 'meta', key: nft.NFT_META_IIFNAME, dreg: 0 },
  is(device.padEnd(16, '\0')),
]
export const mask = (m: number, xor: number): Expression => ({
  kind: 'bitwise',
  sreg: 0,
  dreg: 0,
  mask: u32host(m),
  xor: u32host(xor),
})

export const readMark: Expression = { kind: 'meta', key: nft.NFT_META_MARK, dreg: 0 }
export const writeMark: Expression = { kind: 'meta-set', key: nft.NFT_META_MARK, sreg: 0 }
export const roll = (modulus: number): Expression => ({ kind: 'numgen', modulus, dreg: 0 })
export const find = (set: string, dreg: number | 'verdict' | undefined, inverted = false): Expression => ({
  kind: 'lookup',
  set,
  sreg: 0,
  dreg,
  inverted,
})
export const dnat: Expression = { kind: 'dnat', family: 'ip', addressReg: 4, portReg: 5 }
export const masquerade: Expression = { kind: 'masquerade', flags: 0 }
