import { describe, expect, it } from 'vitest'
import { CurveHistory, commitCurves } from '../../../../src/inspect/page/page-curves.ts'
import { topState, unansweredRow } from '../live/rows.ts'

describe('the curves', () => {
  it('keep 15 minutes, and have a gap where no viewer asked', () => {
    const history = new CurveHistory()
    const values = (nowMs: number, name: string) =>
      history.read(nowMs, { journal: [], wallMs: 0 }).curves.find(each => each.name === name)?.values ?? []
    for (let step = 0; step < 1_000; step++)
      if (step < 900 || step > 950) history.take(topState({ perSecond: step }), step * 5_000)
    const rates = values(999 * 5_000, 'rate')
    expect(rates).toHaveLength(180)
    expect(rates[0]).toBe(820)
    expect(rates.at(-1)).toBe(999)
    expect(rates.filter(value => value === null)).toHaveLength(51)
    expect(values(999 * 5_000, 'rejects').every(value => value === null)).toBe(true)
    // An hour later nothing of it is left.
    expect(values(999 * 5_000 + 3_600_000, 'rate').every(value => value === null)).toBe(true)
  })

  it('count connections without a reply, one-way ports left out', () => {
    const history = new CurveHistory()
    const rows = [unansweredRow({ unanswered: 4 }), unansweredRow({ unanswered: 9, isOneWay: true })]
    history.take(topState({ unanswered: { rows, seenS: 60 } }), 0)
    const { curves } = history.read(0, { journal: [], wallMs: 0 })
    expect(curves.find(({ name }) => name === 'unanswered')?.values.at(-1)).toBe(4)
  })
})

describe('the curves of commits', () => {
  const nowMs = Date.parse('2026-11-29T12:00:00Z')
  const line = (ageS: number, durationMs: number) => ({
    time: new Date(nowMs - ageS * 1000).toISOString(),
    durationMs,
  })

  it('have the number and the longest of each step', () => {
    const [commits, lag] = commitCurves([line(62, 3), line(61, 7.26), line(1, 2)], nowMs)
    expect(commits?.values.slice(-13)).toEqual([2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1])
    expect(lag?.values.at(-13)).toBe(7.3)
    expect(lag?.values.at(-1)).toBe(2)
  })

  it('begin with the oldest commit of a full journal, and skip those of the future and of no time', () => {
    const full = Array.from({ length: 128 }, (_, n) => line(127 - n, 1))
    const [commits] = commitCurves(full, nowMs)
    expect(commits?.values.filter(value => value === null)).toHaveLength(154)
    expect(commits?.values.at(-1)).toBe(5)
    const [after] = commitCurves([line(-3_600, 1), { time: 'x' }, line(9_000, 1), 7], nowMs)
    expect(after?.values.every(value => value === 0)).toBe(true)
    expect(commitCurves(undefined, nowMs)[0]?.values).toHaveLength(180)
  })
})
