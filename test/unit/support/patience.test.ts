import { describe, expect, it } from 'vitest'
import { eventually, MeasuredMachine, Patience } from '../../support/patience.ts'

/** A machine whose clock stands still but for what a test lets pass. */
function machine(slowness = 1) {
  const at = { ms: 0, slowness }
  return { at, machine: { nowMs: () => at.ms, slowness: () => at.slowness } }
}

describe('the patience of a test', () => {
  it('ends behind its limit on an idle machine', () => {
    const { at, machine: idle } = machine()
    const patience = new Patience(1_000, { machine: idle })
    at.ms = 1_000
    expect(patience.isOver).toBe(false)
    at.ms = 1_001
    expect(patience.isOver).toBe(true)
    expect(`${patience}`).toBe('not within 1000 ms of an idle machine (1001 ms here)')
  })

  it('lasts as many times longer as the machine is slower, and follows when the load changes', () => {
    const { at, machine: busy } = machine(5)
    const patience = new Patience(1_000, { machine: busy })
    at.ms = 4_000
    expect(patience.isOver).toBe(false)
    at.slowness = 1
    at.ms = 4_200
    expect(patience.isOver).toBe(false)
    at.ms = 4_201
    expect(patience.isOver).toBe(true)
  })

  it('begins anew with progress, but not for ever', () => {
    const { at, machine: idle } = machine()
    let lines = 0
    const patience = new Patience(1_000, { machine: idle, progress: () => lines })
    for (let i = 0; i < 10; i++) {
      at.ms += 5_000
      lines++
      expect(patience.isOver).toBe(false)
    }
    lines++
    at.ms += 1_001
    expect(patience.isOver).toBe(true)
  })
})

describe('the measured machine', () => {
  it('is slow when a fixed computation takes long or threads wait for processors, measured anew when that is old', () => {
    const at = { ms: 0, computeMs: 2, crowd: 0.5, computed: 0 }
    const measured = new MeasuredMachine(
      () => at.ms,
      () => {
        at.ms += at.computeMs
        at.computed++
      },
      () => at.crowd,
    )
    expect(measured.slowness()).toBe(1)
    at.computeMs = 20
    expect(measured.slowness()).toBe(1)
    expect(at.computed).toBe(2)
    at.ms += 1_000
    expect(measured.slowness()).toBe(10)
    Object.assign(at, { ms: at.ms + 1_000, crowd: 30 })
    expect(measured.slowness()).toBe(30)
  })
})

describe('eventually', () => {
  it('gives the time that it took', async () => {
    let looks = 0
    expect(await eventually(() => ++looks === 3)).toBeGreaterThan(0)
  })

  it('says what is the matter when it does not become so', async () => {
    const { at, machine: idle } = machine()
    const never = () => {
      at.ms += 600
      return false
    }
    const waited = eventually(never, { machine: idle, limitMs: 1_000, describe: () => 'no pods' })
    await expect(waited).rejects.toThrow('not within 1000 ms of an idle machine (1200 ms here): no pods')
  })
})
