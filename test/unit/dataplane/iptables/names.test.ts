import { createHash } from 'node:crypto'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { base32Hash } from '../../../../src/dataplane/iptables/chain-hash.ts'
import { endpointChain, portChains } from '../../../../src/dataplane/iptables/layout.ts'

const ALPHABET = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567'

describe('names of chains', () => {
  // docs/kube-proxy.md 4.5
  it('are those of kube-proxy', () => {
    expect(portChains('ns1/svc1:p80', 'TCP')).toEqual({
      svc: 'KUBE-SVC-XPGD46QRK7WJZT7O',
      svl: 'KUBE-SVL-XPGD46QRK7WJZT7O',
      ext: 'KUBE-EXT-XPGD46QRK7WJZT7O',
      fw: 'KUBE-FW-XPGD46QRK7WJZT7O',
    })
    expect(portChains('default/kubernetes:https', 'TCP').svc).toBe('KUBE-SVC-NPX46M4PTMTKRN6Y')
    expect(endpointChain('ns1/svc1:p80', 'TCP', '10.180.0.1:80')).toBe('KUBE-SEP-SXIVWICOYRO3J4NJ')
  })

  it('are the hash in base32, five bits a letter', () => {
    fc.assert(
      fc.property(fc.string(), text => {
        const digest = createHash('sha256').update(text).digest()
        const bits = [...digest].map(byte => byte.toString(2).padStart(8, '0')).join('')
        const letters = Array.from({ length: 16 }, (_, at) =>
          ALPHABET.charAt(Number.parseInt(bits.slice(5 * at, 5 * at + 5), 2)),
        )
        expect(base32Hash(text)).toBe(letters.join(''))
      }),
    )
  })
})
