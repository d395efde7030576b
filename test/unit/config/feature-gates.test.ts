import { describe, expect, it } from 'vitest'
import { isGateOn, isRead, misspelledGate, parseGates } from '../../../src/config/feature-gates.ts'

describe('isRead', () => {
  it.each([
    ['AllowServiceExternalIPs', true],
    ['AllBeta', true],
    ['NodeSwap', false],
    ['Nonsense', false],
    ['__proto__', false],
  ])('is of %s %s', (name, read) => {
    expect(isRead(name)).toBe(read)
  })
})

describe('misspelledGate', () => {
  it.each([
    ['allowServiceExternalIPs', 'AllowServiceExternalIPs'],
    ['AllowServiceExternalIP', 'AllowServiceExternalIPs'],
    ['ComponentFlags', 'ComponentFlagz'],
    ['AllBetas', 'AllBeta'],
  ])('takes %s for %s, which kprobe reads', (name, meant) => {
    expect(misspelledGate(name)).toBe(meant)
  })

  it.each(['ComponentLogz', 'KubeProxyOf138', '__proto__', ''])('leaves %s to other versions', name => {
    expect(misspelledGate(name)).toBeUndefined()
  })
})

describe('isGateOn', () => {
  it('gives the default of gates that are not set', () => {
    expect(isGateOn({}, 'AllowServiceExternalIPs')).toBe(true)
    expect(isGateOn({}, 'ComponentFlagz')).toBe(true)
  })

  it('lets AllBeta speak for gates of its stage that are not named', () => {
    expect(isGateOn({ AllBeta: false, ComponentStatusz: true }, 'ComponentStatusz')).toBe(true)
    expect(isGateOn({ AllBeta: false }, 'ComponentStatusz')).toBe(false)
    expect(isGateOn({ AllBeta: false, AllAlpha: false }, 'AllowServiceExternalIPs')).toBe(true)
  })
})

describe('parseGates', () => {
  it('reads pairs over commas and occurrences; the later mention counts', () => {
    expect(parseGates(['A=true, B=F', '', 'A=0,'])).toEqual({ gates: { A: false, B: false } })
  })

  it.each([
    ['X', '"X" is not written NAME=true or NAME=false'],
    ['X=maybe', '"X=maybe" does not end in true or false'],
  ])('refuses %s', (text, problem) => {
    expect(parseGates([text])).toEqual({ problem })
  })
})
