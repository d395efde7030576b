import { formatGoDuration, parseDurationMs, TIMER_MS_MAX } from '../base/duration.ts'
import { assert } from '../base/errors.ts'
import { type Cidr, parseCidr, whyNotCidr } from '../base/ip.ts'
import { nearest } from '../base/text.ts'

/** One flag of the command line, for parsing, validation messages and help. */
export interface FlagSpec {
  readonly name: string
  readonly short?: string
  /** `bool` accepts a value only after `=`, as Go's flags do; `list` is comma-separated and may be repeated. */
  readonly kind: 'bool' | 'text' | 'list' | 'duration' | 'integer' | 'number'
  readonly placeholder?: string
  /** The default as text; absent for none, and for false. */
  readonly default?: string
  readonly help: string
  /** Heading in help texts; a flag without one comes last. */
  readonly group?: string
  /** The flag is accepted, but absent from help texts. */
  readonly hidden?: true
  /** The flag is printed by --help-all only. */
  readonly rare?: true
  /** A shell completes the value with the names of Services. */
  readonly namesService?: true
  /** The valid values; the first is the default. */
  readonly choices?: readonly string[]
  /** Reads the value, and reports errors: for a flag that has more valid values than its choices. */
  readonly check?: (reader: FlagReader) => unknown
}

/** Kinds by the word for the value; a word that ends with `,...` is that of a list, and any other that of a text. */
const KINDS: Readonly<Record<string, FlagSpec['kind']>> = {
  DURATION: 'duration',
  RATE: 'number',
  BIT: 'integer',
  COUNT: 'integer',
  LEVEL: 'integer',
  N: 'integer',
  PORT: 'integer',
  SCORE: 'integer',
  SECONDS: 'integer',
}

const USAGE = /^(?:-(?<short>\w), )?--(?<name>\S+)(?: (?<placeholder>[^\s=]\S*))?(?: = (?<fallback>.+))?$/

type MoreOfFlag = Partial<Omit<FlagSpec, 'name' | 'short' | 'placeholder' | 'default' | 'help'>>

/** Makes a flag of its usage, as help prints it, with its default: `-o, --output FORMAT = text`. */
export function flag(usage: string, help: string, more: MoreOfFlag = {}): FlagSpec {
  const { short, name, placeholder, fallback } = USAGE.exec(usage)?.groups ?? {}
  assert(name !== undefined, `not the usage of a flag: ${usage}`)
  return {
    name,
    ...(short === undefined ? {} : { short }),
    kind: kindOf(placeholder),
    ...(placeholder === undefined ? {} : { placeholder }),
    ...(fallback === undefined ? {} : { default: fallback }),
    help,
    ...more,
  }
}

function kindOf(placeholder: string | undefined): FlagSpec['kind'] {
  if (placeholder === undefined) return 'bool'
  return placeholder.endsWith(',...') ? 'list' : (KINDS[placeholder] ?? 'text')
}

/** Helps of flags by usage, in order. */
type FlagTable = Readonly<Record<string, string | readonly [help: string, more: MoreOfFlag]>>

export function flags(table: FlagTable): readonly FlagSpec[] {
  return Object.entries(table).map(([usage, its]) =>
    typeof its === 'string' ? flag(usage, its) : flag(usage, ...its),
  )
}

/** Makes flags with a heading in help texts. */
export function flagGroup(heading: string, table: FlagTable): readonly FlagSpec[] {
  return grouped(heading, flags(table))
}

export function defaultOf({ kind, default: text }: Pick<FlagSpec, 'kind' | 'default'>): string {
  return text ?? (kind === 'bool' ? 'false' : '')
}

export function grouped(group: string, specs: readonly FlagSpec[]): readonly FlagSpec[] {
  return specs.map(spec => ({ ...spec, group }))
}

/** One error in the configuration; `path` is the flag (`--cluster-cidr`) or the argument. */
export interface ConfigError {
  readonly path: string
  readonly message: string
}

interface Arguments {
  readonly values: ReadonlyMap<string, readonly string[]>
  readonly positionals: readonly string[]
  readonly errors: readonly ConfigError[]
}

/**
 * Splits arguments as Go's pflag does: `--flag=value`, `--flag value`, `--bool`, `--bool=false`, `-v4`, `-v=4`, `-v 4`.
 * `--` ends the flags, and underscores stand for dashes. Reports all errors.
 */
export function readArguments(argv: readonly string[], specs: readonly FlagSpec[]): Arguments {
  const values = new Map<string, string[]>()
  const positionals: string[] = []
  const errors: ConfigError[] = []
  for (let index = 0; index < argv.length; index++) {
    const argument = argv[index] ?? ''
    if (argument === '--') {
      positionals.push(...argv.slice(index + 1))
      break
    }
    if (!argument.startsWith('-') || argument === '-') {
      positionals.push(argument)
      continue
    }
    const { name, label, inline } = splitFlag(argument)
    const spec = specs.find(each => (label.startsWith('--') ? each.name : each.short) === name)
    const meant = spec ?? nearestFlag(name, specs)
    // The text after a misspelled flag is its value, and not a second error.
    const takesValue = meant !== undefined && meant.kind !== 'bool'
    const next = argv[index + 1]
    const value = inline ?? (takesValue ? next : 'true')
    if (inline === undefined && takesValue && next !== undefined) index++
    if (spec === undefined) errors.push({ path: label, message: unknownFlag(meant) })
    else if (value === undefined) errors.push({ path: label, message: 'needs a value' })
    else values.set(spec.name, [...(values.get(spec.name) ?? []), value])
  }
  return { values, positionals, errors }
}

interface SplitFlag {
  readonly name: string
  readonly label: string
  readonly inline: string | undefined
}

function splitFlag(argument: string): SplitFlag {
  if (!argument.startsWith('--')) {
    const rest = argument.slice(2)
    const inline = rest === '' ? undefined : rest.replace(/^=/, '')
    return { name: argument.slice(1, 2), label: argument.slice(0, 2), inline }
  }
  const equals = argument.indexOf('=')
  const name = argument.slice(2, equals < 0 ? undefined : equals).replaceAll('_', '-')
  return { name, label: `--${name}`, inline: equals < 0 ? undefined : argument.slice(equals + 1) }
}

function unknownFlag(meant: FlagSpec | undefined): string {
  return meant === undefined ? 'no such flag' : `no such flag; did you mean --${meant.name}?`
}

/** The flag with the fewest other letters, or the only one that begins as `name` does. */
function nearestFlag(name: string, specs: readonly FlagSpec[]): FlagSpec | undefined {
  const near = nearest(
    name,
    specs.map(spec => spec.name),
  )
  if (near !== undefined) return specs.find(spec => spec.name === near)
  const alike = specs.filter(spec => spec.name.startsWith(name) || name.startsWith(spec.name))
  // Three letters or fewer are the beginning of too much.
  return name.length < 4 || alike.length > 1 ? undefined : alike[0]
}

export function parseBool(text: string): boolean | undefined {
  if (['1', 't', 'T', 'true', 'TRUE', 'True'].includes(text)) return true
  if (['0', 'f', 'F', 'false', 'FALSE', 'False'].includes(text)) return false
  return undefined
}

/** Reads typed values out of raw arguments and collects errors, so that all are reported in one round. */
export class FlagReader {
  readonly errors: ConfigError[]
  readonly positionals: readonly string[]
  readonly #values: Arguments['values']

  constructor(given: Arguments) {
    this.#values = given.values
    this.positionals = given.positionals
    this.errors = [...given.errors]
  }

  given(name: string): boolean {
    return this.#values.has(name)
  }

  text(name: string): string | undefined {
    return this.#values.get(name)?.at(-1)
  }

  /** Gives the effective value of each flag as text: the last value, or the default. */
  effective(specs: readonly FlagSpec[]): ReadonlyMap<string, string> {
    return new Map(
      specs.map(spec => {
        const { name, kind } = spec
        const given = kind === 'list' ? this.#values.get(name)?.join(',') : this.text(name)
        return [name, given ?? defaultOf(spec)]
      }),
    )
  }

  all(name: string): readonly string[] {
    return this.#values.get(name) ?? []
  }

  bool(name: string): boolean {
    const text = this.text(name)
    if (text === undefined) return false
    const value = parseBool(text)
    if (value === undefined) this.fail(`--${name}`, `${quote(text)} is not true or false`)
    return value ?? false
  }

  /** Gives the items of all occurrences, trimmed, without empty ones. */
  list(name: string): string[] {
    const given = this.#values.get(name) ?? []
    return given
      .flatMap(text => text.split(','))
      .map(item => item.trim())
      .filter(item => item !== '')
  }

  oneOf<T extends string>(name: string, allowed: readonly T[], fallback: T): T {
    const text = this.text(name)
    if (text === undefined) return fallback
    const found = allowed.find(value => value === text)
    if (found === undefined)
      this.fail(
        `--${name}`,
        `${quote(text)} is not ${allowed.length > 1 ? 'one of ' : ''}${allowed.join(', ')}`,
      )
    return found ?? fallback
  }

  integer(name: string, range: { min: number; max: number; fallback: number }): number {
    const text = this.text(name)
    if (text === undefined) return range.fallback
    const value = /^\d{1,9}$/.test(text) ? Number(text) : Number.NaN
    if (value >= range.min && value <= range.max) return value
    this.fail(`--${name}`, `${quote(text)} is not a whole number from ${range.min} to ${range.max}`)
    return range.fallback
  }

  /** Gives a duration that a timer can wait, in milliseconds. */
  durationMs(name: string, { minMs = 0, maxMs = TIMER_MS_MAX, fallbackMs = 0 }): number {
    const text = this.text(name)
    const ms = text === undefined ? fallbackMs : parseDurationMs(text)
    if (ms !== undefined && ms >= minMs && ms <= maxMs) return ms
    const min = minMs === 0 ? '0' : formatGoDuration(BigInt(minMs) * 1_000_000n)
    const max = `${Math.floor(maxMs / 3_600_000)}h`
    this.fail(`--${name}`, `${quote(text ?? '')} is not a duration (10s, 2m) from ${min} to ${max}`)
    return fallbackMs
  }

  fail(path: string, message: string): void {
    this.errors.push({ path, message })
  }
}

/** Quotes a value for a message: on one line, and cut to 80 characters. */
export function quote(text: string): string {
  return JSON.stringify(text.length > 80 ? `${text.slice(0, 77)}...` : text)
}

export function readCidrs(
  texts: readonly string[],
  fail: (index: number, message: string) => void,
): readonly Cidr[] {
  const cidrs: Cidr[] = []
  for (const [index, text] of texts.entries()) {
    const cidr = parseCidr(text)
    if (cidr !== undefined) cidrs.push(cidr)
    else fail(index, `${quote(text)} is ${whyNotCidr(text)}`)
  }
  return cidrs
}
