import { describe, expect, it } from 'vitest'
import type { Family } from '../../../src/base/ip.ts'
import { dumpsFor, WALKS_MAX } from '../../../src/flows/pass.ts'
import type { FlowPhase } from '../../../src/flows/ports.ts'
import { RuleBook } from '../../../src/flows/stale.ts'
import { socket } from '../kernel/conntrack/flows.ts'

function book(
  family: Family,
  sockets: readonly string[],
  nodePorts: readonly number[] = [],
  phase: FlowPhase = 'under way',
): RuleBook {
  const made = new RuleBook({ family, protocol: 'UDP', phase }, { ips: new Set(), isOpen: false })
  const port = {
    service: 'ns/dns',
    family,
    protocol: 'UDP',
    endpoints: new Set<string>(),
    drainMs: undefined,
  } as const
  made.serve({ ...port, sockets: sockets.map(socket), nodePort: 0 })
  for (const nodePort of nodePorts) made.serve({ ...port, sockets: [], nodePort })
  return made
}

const UDP4 = { family: 'IPv4', protocol: 'UDP' } as const
const UDP6 = { family: 'IPv6', protocol: 'UDP' } as const

describe('dumpsFor', () => {
  it('asks for IPv6 by port alone, once for all addresses', () => {
    const sockets = ['[fd00:96::1]:53', '[fd00:96::2]:53', '[fd00:96::2]:54']
    expect(dumpsFor(book('IPv6', sockets, [30053]))).toEqual([
      { ...UDP6, destinationPort: 30053 },
      { ...UDP6, destinationPort: 53 },
      { ...UDP6, destinationPort: 54 },
    ])
  })

  it('asks for everything instead of walking the table too often', () => {
    const addresses = Array.from({ length: WALKS_MAX + 1 }, (_, n) => `10.96.0.${n}:53`)
    expect(dumpsFor(book('IPv4', addresses))).toEqual([UDP4])
    expect(dumpsFor(book('IPv4', addresses.slice(1)))).toHaveLength(WALKS_MAX)
    expect(dumpsFor(book('IPv4', addresses.slice(1), [30053]))).toEqual([UDP4])
  })

  it('asks once for attempts without an answer, whatever their addresses', () => {
    const { ip } = socket('10.96.0.10:53')
    const asked = (...words: readonly string[]) => dumpsFor(book('IPv4', words, [], 'half-open'))
    expect(asked('10.96.0.10:53')).toEqual([
      { ...UDP4, destination: ip, destinationPort: 53, isHalfOpen: true },
    ])
    expect(asked('10.96.0.10:53', '10.96.0.11:53')).toEqual([{ ...UDP4, isHalfOpen: true }])
  })
})
