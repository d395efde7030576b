import { describe, expect, it } from 'vitest'
import { isWatched, lookAt, type View, versionOf } from '../../../src/flows/ports.ts'
import { service, slice } from '../model/objects.ts'
import { DNS_PORT, dns, dnsSlice, READY, view } from './views.ts'

const [A, B] = ['10.2.0.1', '10.2.0.2']
const of = (now: View) => versionOf(now, 'ns/dns')

/** Whether flows may be stale after the change. */
function isLooked(before: View, after: View): boolean {
  return lookAt([of(before)], of(after)) !== undefined
}

const one = view([dns(), dnsSlice({ [A]: READY })])
const nothing = view([])

describe('isWatched', () => {
  const web = (annotations: Record<string, string> = {}) =>
    view([
      service('dns', {}, { metadata: { annotations } }),
      slice('dns-a', 'dns', [{ addresses: [A], conditions: READY }]),
    ])

  it('leaves TCP alone unless the Service cuts connections', () => {
    expect(isWatched(of(one))).toBe(true)
    expect(isWatched(of(web()))).toBe(false)
    expect(isWatched(of(web({ 'kprobe.io/tcp-drain': 'cut' })))).toBe(true)
    expect(isWatched(of(view([dns({ ports: [{ port: 53, protocol: 'SCTP' }] })])))).toBe(true)
    expect(isWatched(of(nothing))).toBe(false)
  })

  it('looks at SCTP when an endpoint has left its slice, and at nothing else of it', () => {
    const sctp = (...addresses: readonly string[]) => {
      const ports = [{ ...DNS_PORT, protocol: 'SCTP' }]
      const endpoints = Object.fromEntries(addresses.map(address => [address, READY]))
      return view([dns({ ports }), dnsSlice(endpoints, { ports: [{ ...DNS_PORT, protocol: 'SCTP' }] })])
    }
    expect(isLooked(sctp(A, B), sctp(B))).toBe(true)
    expect(isLooked(sctp(A), sctp(A, B))).toBe(false)
    expect(isLooked(nothing, sctp(A))).toBe(false)
    expect(isLooked(sctp(A), nothing)).toBe(false)
  })

  it('looks at TCP when the time for draining changes, and when an endpoint has left its slice', () => {
    const draining = (drain: string, address = A) =>
      view([
        service('dns', {}, { metadata: { annotations: { 'kprobe.io/tcp-drain': drain } } }),
        slice('dns-a', 'dns', [{ addresses: [address], conditions: READY }]),
      ])
    expect(isLooked(web(), draining('30s'))).toBe(true)
    expect(isLooked(draining('30s'), draining('20s'))).toBe(true)
    expect(isLooked(draining('30s'), draining('30s'))).toBe(false)
    expect(isLooked(draining('30s'), draining('30s', B))).toBe(true)
    expect(isLooked(draining('30s'), web())).toBe(false)
  })
})
