import { describe, expect, it } from 'vitest'
import { isGateOn, misspelledGate, parseGates, whyNotGate } from '../../../src/config/feature-gates.ts'

describe('whyNotGate', () => {
  it.each([
    ['AllowServiceExternalIPs', false],
    ['AllAlpha', true],
    ['AllBeta', false],
    ['NodeSwap', true],
    ['NFTablesProxyMode', true],
    ['NFTablesNetlink', false],
    ['KubeProxyIPVS', false],
    ['KubeProxyNFTablesLocalhostNodePorts', true],
  ])('lets %s be %s', (name, value) => {
    expect(whyNotGate(name, value)).toBeUndefined()
  })

  it.each([
    ['Nonsense', true, 'unrecognized feature gate'],
    ['__proto__', true, 'unrecognized feature gate'],
    ['NFTablesProxyMode', false, 'cannot be set to false: the feature is locked to true'],
    ['WinOverlay', false, 'cannot be set to false: the feature is locked to true'],
  ])('refuses %s to be %s', (name, value, why) => {
    expect(whyNotGate(name, value)).toBe(why)
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
