import { listAt, numberAt, textAt } from '../../base/plain-data.ts'
import type { TopState } from '../live/top-sampler.ts'

/** The curves of the page: 15 minutes in steps of 5 s. */
const STEP_MS = 5_000
const STEPS = 180

export interface Curve {
  readonly name: string
  /** From the oldest step to the last one; null where it was not measured. */
  readonly values: readonly (number | null)[]
}

interface Step {
  readonly number: number
  readonly rate: number
  readonly rejects: number | undefined
  readonly unanswered: number | undefined
}

/** Keeps what was measured in the last 15 minutes, while a viewer asked for it: 180 steps at most. */
export class CurveHistory {
  #steps: readonly Step[] = []

  take({ perSecond, rejectsPerSecond, unanswered }: TopState, nowMs: number): void {
    const number = Math.floor(nowMs / STEP_MS)
    if (this.#steps.at(-1)?.number === number) return
    const silent = unanswered?.rows.reduce((sum, row) => sum + (row.isOneWay ? 0 : row.unanswered), 0)
    const step = { number, rate: perSecond, rejects: rejectsPerSecond, unanswered: silent }
    this.#steps = [...this.#steps, step].filter(each => each.number > number - STEPS)
  }

  /** Gives the measured curves, and those of the commits in the journal, which are complete as far as it reaches. */
  read(nowMs: number, { journal, wallMs }: { readonly journal: unknown; readonly wallMs: number }) {
    const last = Math.floor(nowMs / STEP_MS)
    const byNumber = new Map(this.#steps.map(step => [step.number, step]))
    const steps = Array.from({ length: STEPS }, (_, index) => byNumber.get(last - STEPS + 1 + index))
    const curveOf = (name: string, value: (step: Step) => number | undefined): Curve => ({
      name,
      values: steps.map(step => (step === undefined ? null : (value(step) ?? null))),
    })
    return {
      stepS: STEP_MS / 1000,
      curves: [
        curveOf('rate', ({ rate }) => rate),
        curveOf('rejects', ({ rejects }) => rejects),
        curveOf('unanswered', ({ unanswered }) => unanswered),
        ...commitCurves(journal, wallMs),
      ],
    }
  }
}

/**
 * The number of commits and the longest commit (ms) of each step. A journal is full from its oldest commit on; a commit of
 * the future, after a clock that was set back, is in none. Pure.
 */
export function commitCurves(journal: unknown, wallMs: number): readonly Curve[] {
  const lines = listAt({ journal }, 'journal')
  const ages = lines.map(line => (wallMs - Date.parse(textAt(line, 'time'))) / STEP_MS)
  const indexOf = (age: number) => STEPS - 1 - Math.floor(age)
  // The journal keeps 128 commits: before the first of a full one, others may have been.
  const known = lines.length < 128 ? 0 : Math.max(0, indexOf(ages[0] ?? 0))
  const empty = () => Array.from({ length: STEPS }, (_, index) => (index < known ? null : 0))
  const [commits, longest]: (number | null)[][] = [empty(), empty()]
  for (const [order, line] of lines.entries()) {
    const index = indexOf(ages[order] ?? Number.NaN)
    if (!(index >= known && index < STEPS) || commits === undefined || longest === undefined) continue
    commits[index] = (commits[index] ?? 0) + 1
    longest[index] = Math.max(longest[index] ?? 0, numberAt(line, 'durationMs') ?? 0)
  }
  return [
    { name: 'commits', values: commits ?? [] },
    { name: 'lag', values: (longest ?? []).map(each => each && Math.round(each * 10) / 10) },
  ]
}
