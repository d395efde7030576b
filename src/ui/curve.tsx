import { useState } from 'preact/hooks'
import { ageText } from '../base/duration.ts'
import { rateText } from './format.ts'

interface CurveProps {
  readonly title: string
  /** Oldest first; null where nothing was measured. */
  readonly values: readonly (number | null)[]
  readonly stepS: number
  readonly link: string
  /** More than none is trouble. */
  readonly isBad?: boolean
}

const HEIGHT = 48

/** The last 15 minutes of one figure: its last value large, its curve, and the value under the pointer. */
export function Curve({ title, values, stepS, link, isBad }: CurveProps) {
  const [pointed, point] = useState<number>()
  const known = values.filter(value => value !== null)
  const top = Math.max(...known, 1)
  const last = values.findLast(value => value !== null) ?? undefined
  const shown = pointed === undefined ? last : (values[pointed] ?? undefined)
  const at = pointed === undefined ? 'now' : `${ageText((values.length - 1 - pointed) * stepS * 1000)} ago`
  const most = known.length === 0 ? '' : `, ${rateText(Math.max(...known))} at most`
  const summary = `${title}: ${last === undefined ? 'not measured' : `${rateText(last)} now`}${most}`
  return (
    <a class={isBad === true && (last ?? 0) > 0 ? 'curve bad' : 'curve'} href={link} aria-label={summary}>
      <small class="name">{title}</small>
      <span class="value">{shown === undefined ? '–' : rateText(shown)}</span>
      <small>{at + most}</small>
      <svg
        viewBox={`0 0 ${values.length - 1} ${HEIGHT}`}
        preserveAspectRatio="none"
        aria-hidden="true"
        onMouseMove={event => {
          const { left, width } = event.currentTarget.getBoundingClientRect()
          point(Math.round(((event.clientX - left) / Math.max(1, width)) * (values.length - 1)))
        }}
        onMouseLeave={() => point(undefined)}
      >
        {runsOf(values).flatMap(run => [
          <path key={`area ${run.from}`} class="area" d={areaOf(run, top)} />,
          <path key={run.from} d={lineOf(run, top)} />,
        ])}
        {pointed === undefined ? null : <path class="pointer" d={`M${pointed} 0V${HEIGHT}`} />}
      </svg>
    </a>
  )
}

interface Run {
  readonly from: number
  readonly values: readonly number[]
}

/** Parts of a curve without gaps. Pure. */
export function runsOf(values: readonly (number | null)[]): readonly Run[] {
  const runs: { from: number; values: number[] }[] = []
  for (const [index, value] of values.entries()) {
    if (value === null) continue
    const last = runs.at(-1)
    if (last !== undefined && last.from + last.values.length === index) last.values.push(value)
    else runs.push({ from: index, values: [value] })
  }
  return runs
}

/** A run of one value is as wide as half a step, so that it can be seen. */
function lineOf({ from, values }: Run, top: number): string {
  const points = values.map((value, index) => `${from + index} ${heightOf(value, top)}`)
  return `M${points.join('L')}${values.length === 1 ? 'h0.5' : ''}`
}

function areaOf(run: Run, top: number): string {
  return `${lineOf(run, top)}V${HEIGHT}H${run.from}Z`
}

function heightOf(value: number, top: number): string {
  return (HEIGHT - 2 - (value / top) * (HEIGHT - 4)).toFixed(1)
}
