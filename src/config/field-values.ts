import { parseGoDuration } from '../base/duration.ts'
import { parseBool, quote } from './flag.ts'

/** The way in which Go's JSON decoder treats a field of KubeProxyConfiguration. */
export type FieldKind =
  | 'text'
  /** A text for which `off` is a value: YAML takes that for false. */
  | 'switch'
  | 'bool'
  | 'int32'
  | 'uint32'
  | 'float'
  | 'duration'
  /** A duration as text, or as a number of nanoseconds. */
  | 'flush'
  | 'quantity'
  | 'texts'
  | 'gates'
  | 'vmodule'

export interface VmoduleItem {
  readonly filePattern: string
  readonly verbosity: number
}

/** Values by kind: a duration is a bigint of nanoseconds, but a number if it was given as one; a quantity is text. */
export type FieldValue =
  | string
  | boolean
  | number
  | bigint
  | readonly string[]
  | Readonly<Record<string, boolean>>
  | readonly VmoduleItem[]

const INT32_MIN = -(2 ** 31)
const INT32_MAX = 2 ** 31 - 1

export type ScalarKind = Exclude<FieldKind, 'texts' | 'gates' | 'vmodule'>

export function isScalar(kind: FieldKind): kind is ScalarKind {
  return kind !== 'texts' && kind !== 'gates' && kind !== 'vmodule'
}

const EXPECTED: Readonly<Record<FieldKind, string>> = {
  text: 'a text',
  switch: 'a text',
  bool: 'true or false',
  int32: `a whole number from ${INT32_MIN} to ${INT32_MAX}`,
  // klog counts in 31 bits.
  uint32: `a whole number from 0 to ${INT32_MAX}`,
  float: 'a number',
  duration: 'a duration such as 30s, 1m30s or 20ms',
  flush: 'a duration such as 30s, or a number of nanoseconds',
  quantity: 'a size such as 512, 4k or 1Mi',
  texts: 'a list of texts',
  gates: 'a mapping of names to true or false',
  vmodule: 'a list of mappings with filePattern and verbosity',
}

export function whyNotValue(kind: FieldKind, value: unknown): string {
  return `${describe(value)} is not ${EXPECTED[kind]}`
}

function describe(value: unknown): string {
  if (value === null) return 'null'
  if (typeof value === 'string') return quote(value)
  return typeof value === 'object' ? (Array.isArray(value) ? 'a list' : 'a mapping') : String(value)
}

/** Reads a scalar of the file; undefined if this kind of field cannot hold it. */
export function scalarValue(kind: ScalarKind, scalar: unknown): FieldValue | undefined {
  switch (kind) {
    case 'text':
      return typeof scalar === 'string' ? scalar : undefined
    case 'switch':
      return scalar === false ? 'off' : scalarValue('text', scalar)
    case 'bool':
      return typeof scalar === 'boolean' ? scalar : undefined
    case 'int32':
      return wholeNumber(scalar, INT32_MIN, INT32_MAX)
    case 'uint32':
      return wholeNumber(scalar, 0, INT32_MAX)
    case 'float':
      return typeof scalar === 'number' ? singlePrecision(scalar) : undefined
    case 'duration':
      return typeof scalar === 'string' ? parseGoDuration(scalar) : undefined
    case 'flush':
      return typeof scalar === 'string'
        ? parseGoDuration(scalar)
        : wholeNumber(scalar, Number.MIN_SAFE_INTEGER, Number.MAX_SAFE_INTEGER)
    case 'quantity':
      return ['string', 'number'].includes(typeof scalar) && QUANTITY.test(String(scalar))
        ? String(scalar)
        : undefined
  }
}

/** Gives the shortest decimal that equals `value` as a Go float32; undefined if it exceeds the range. */
function singlePrecision(value: number): number | undefined {
  const single = Math.fround(value)
  if (!Number.isFinite(single)) return undefined
  for (let digits = 1; digits < 9; digits++) {
    const short = Number(single.toPrecision(digits))
    if (Math.fround(short) === single) return short
  }
  return single
}

function wholeNumber(scalar: unknown, min: number, max: number): number | undefined {
  return typeof scalar === 'number' && Number.isInteger(scalar) && scalar >= min && scalar <= max
    ? scalar
    : undefined
}

/** Reads the text of a flag as pflag and Go's strconv do; numbers may be hexadecimal. */
export function flagValue(kind: ScalarKind, text: string): FieldValue | undefined {
  switch (kind) {
    case 'text':
    case 'switch':
      return text
    case 'bool':
      return parseBool(text)
    case 'int32':
      return scalarValue(kind, parseInteger(text))
    case 'uint32':
      return scalarValue(kind, /^\d+$/.test(text) ? Number(text) : undefined)
    case 'float':
      return /^[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?$/i.test(text) ? scalarValue(kind, Number(text)) : undefined
    case 'duration':
    case 'flush':
      return parseGoDuration(text)
    case 'quantity':
      return scalarValue(kind, text)
  }
}

function parseInteger(text: string): number | undefined {
  const [, sign, digits = ''] = /^([-+]?)(0x[\da-f]+|0b[01]+|0o?[0-7]+|[1-9]\d*|0)$/i.exec(text) ?? []
  if (sign === undefined) return undefined
  const value = Number(digits.replace(/^0(?=[0-7])/, '0o'))
  return sign === '-' ? -value : value
}

/** A size as Kubernetes writes quantities: `512`, `2k`, `1.5Ki`. */
const QUANTITY = /^[+-]?(\d+\.?\d*|\.\d+)([kMGTPE]|[KMGTPE]i|[num]|[eE][+-]?\d{1,2})?$/
