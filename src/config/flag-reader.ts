import { type Cidr, parseCidr, whyNotCidr } from '../base/cidr.ts'
import { type Arguments, type ConfigError, defaultOf, type FlagSpec } from './flag.ts'

/** Parses the words of Go's strconv.ParseBool. */
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

  /** Gives the last value, as Go's flags do. */
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

  /** Gives all values in order. */
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

  fail(path: string, message: string): void {
    this.errors.push({ path, message })
  }
}

/** Quotes a value for a message: on one line, and cut to 80 characters. */
export function quote(text: string): string {
  return JSON.stringify(text.length > 80 ? `${text.slice(0, 77)}...` : text)
}

/** Reads the CIDRs of a list, and calls `fail` for each invalid text. */
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
