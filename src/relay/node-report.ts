import { oneLine } from '../base/text.ts'
import { isJson, type Json } from '../model/fields.ts'
import type { KernelState, Revisions } from '../source/source.ts'

/** What a node says of its kernel, in the metadata of its requests. */
export interface NodeReport extends KernelState {
  /** Wall-clock milliseconds at which its daemon began. Reports of one daemon are ordered by their number. */
  readonly startedMs: number
  readonly number: number
  /** The identity of the cluster that the revisions belong to; empty when it is unknown. */
  readonly cluster: string
  /** The node reads the API server itself, because no relay serves it. */
  readonly isDirect: boolean
}

/** Minimum time between two reports of a node; those that come with the requests of its watches aside. */
export const REPORT_SPACING_MS = 250
/** Time until a node repeats its report. */
export const REPORT_PERIOD_MS = 30_000
/** Maximum length of a report, characters. */
const REPORT_LENGTH_MAX = 8_192
const LACKING_MAX = 8
const NAME_LENGTH_MAX = 130
const TEXT_LENGTH_MAX = 200

export function encodeReport({ failure, lacking, proof, ...rest }: NodeReport): string {
  const report: NodeReport = {
    ...rest,
    failure: short(failure),
    lacking: lacking
      .slice(0, LACKING_MAX)
      .map(({ service, reason }) => ({ service: short(service, NAME_LENGTH_MAX), reason: short(reason) })),
    proof: proof && { ...proof, text: short(proof.text) },
  }
  return JSON.stringify(report)
}

/** Undefined for what no node says. */
export function decodeReport(text: string): NodeReport | undefined {
  if (text.length > REPORT_LENGTH_MAX) return undefined
  const value = parsed(text)
  if (!isJson(value)) return undefined
  const { startedMs, number, cluster, isDirect, failure, lacking, lackingCount, version } = value
  const [held, proof] = [revisionsOf(value.held), proofOf(value.proof)]
  const isWhole =
    isCount(startedMs) &&
    isCount(number) &&
    isCount(lackingCount) &&
    typeof cluster === 'string' &&
    typeof isDirect === 'boolean' &&
    typeof failure === 'string' &&
    typeof version === 'string' &&
    Array.isArray(lacking)
  if (!isWhole || held === null || proof === null) return undefined
  return {
    startedMs,
    number,
    cluster: short(cluster),
    isDirect,
    held,
    failure: short(failure),
    lacking: lacking.slice(0, LACKING_MAX).filter(isJson).map(lackingOf),
    lackingCount,
    proof,
    version: short(version),
  }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

const REVISION = /^[0-9]{0,20}$/

function revisionsOf(value: unknown): Revisions | undefined | null {
  if (value === undefined) return undefined
  if (!isJson(value)) return null
  const { Service, EndpointSlice } = value
  const isWhole = isRevision(Service) && isRevision(EndpointSlice)
  return isWhole ? { Service, EndpointSlice } : null
}

function isRevision(value: unknown): value is string {
  return typeof value === 'string' && REVISION.test(value)
}

function proofOf(value: unknown): NodeReport['proof'] | null {
  if (value === undefined) return undefined
  if (!isJson(value) || !isCount(value.differences) || typeof value.text !== 'string') return null
  return { text: short(value.text), differences: value.differences }
}

function lackingOf({ service, reason }: Json): NodeReport['lacking'][number] {
  return { service: short(String(service), NAME_LENGTH_MAX), reason: short(String(reason)) }
}

function isCount(value: unknown): value is number {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= 0
}

/** One line of text that a terminal may show. */
function short(text: string, length = TEXT_LENGTH_MAX): string {
  return oneLine(text.slice(0, length)).slice(0, length)
}
