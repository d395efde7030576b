import type { FieldValue, VmoduleItem } from './field-values.ts'
import { FIELD_PATHS, type FieldPath, fieldAt, type PathOf } from './fields.ts'
import type { ConfigError } from './flag.ts'

/** A value with its label in errors: `--conntrack-min`, `config.yaml:3:5: conntrack.min`. */
interface Setting {
  readonly value: FieldValue
  readonly label: string
  /** The labels of the items of a list; without them, items are numbered. */
  readonly itemLabels?: readonly string[]
  /** A zero sets the field: so from a flag, while in a file a zero leaves it unset. */
  readonly zeroCounts?: true
  /** The value is not configured: it is a default of the platform or of kprobe. */
  readonly filledIn?: true
}

/**
 * A KubeProxyConfiguration, field by field: the given values, and upstream's defaults for unset fields. For a field
 * without a default, a reader gives the zero value of its kind, as Go does.
 */
export class Settings {
  readonly #given = new Map<FieldPath, Setting>()
  readonly #labelUnset: (path: FieldPath) => string
  readonly errors: ConfigError[] = []

  constructor(labelUnset: (path: FieldPath) => string) {
    this.#labelUnset = labelUnset
  }

  set(path: FieldPath, setting: Setting): void {
    this.#given.set(path, setting)
  }

  /** Tests whether a field is set. For a flag or a pointer any value counts, for other fields any but zero. */
  isSet(path: FieldPath): boolean {
    const given = this.#given.get(path)
    if (given === undefined) return false
    return given.zeroCounts === true || fieldAt(path).pointer === true || !isZero(given.value)
  }

  inherit(to: FieldPath, from: FieldPath): void {
    const given = this.#given.get(from)
    if (given !== undefined && this.isSet(from) && !this.isSet(to)) this.#given.set(to, given)
  }

  /** Gives the value; undefined if the field is unset and has no default upstream. */
  value(path: FieldPath): FieldValue | undefined {
    const given = this.#given.get(path)?.value
    return this.isSet(path) ? given : (fieldAt(path).fallback ?? given)
  }

  text(path: PathOf<'text' | 'switch' | 'quantity'>): string {
    const value = this.value(path)
    return typeof value === 'string' ? value : ''
  }

  bool(path: PathOf<'bool'>): boolean {
    return this.value(path) === true
  }

  number(path: PathOf<'int32' | 'uint32' | 'float'>): number {
    const value = this.value(path)
    return typeof value === 'number' ? value : 0
  }

  duration(path: PathOf<'duration' | 'flush'>): bigint {
    const value = this.value(path)
    if (typeof value === 'number') return BigInt(value)
    return typeof value === 'bigint' ? value : 0n
  }

  texts(path: PathOf<'texts'>): readonly string[] {
    const value = this.value(path)
    return isList(value) ? value.filter(item => typeof item === 'string') : []
  }

  gates(): Readonly<Record<string, boolean>> {
    const value = this.value('featureGates')
    return typeof value === 'object' && !isList(value) ? value : {}
  }

  vmodule(): readonly VmoduleItem[] {
    const value = this.value('logging.vmodule')
    return isList(value) ? value.filter(item => typeof item !== 'string') : []
  }

  /** Tests whether the value differs from the default. */
  isUnusual(path: FieldPath): boolean {
    const { fallback } = fieldAt(path)
    const value = this.#given.get(path)?.value
    return value !== undefined && this.isSet(path) && value !== fallback && !isZero(value)
  }

  /** Gives the label of what set the field; undefined for a default. */
  origin(path: FieldPath): string | undefined {
    const given = this.#given.get(path)
    return given === undefined || given.filledIn === true || isZero(given.value) ? undefined : given.label
  }

  label(path: FieldPath): string {
    return this.#given.get(path)?.label ?? this.#labelUnset(path)
  }

  fail(path: FieldPath, message: string, index?: number): void {
    const { label, itemLabels } = this.#given.get(path) ?? { label: this.#labelUnset(path) }
    const place = index === undefined ? label : (itemLabels?.[index] ?? `${label}[${index}]`)
    this.errors.push({ path: place, message })
  }

  /** Lists the labels of set fields that kprobe does not use, in the order of the table. */
  unusedLabels(): readonly string[] {
    return FIELD_PATHS.filter(path => fieldAt(path).unused === true && this.isUnusual(path)).map(path =>
      this.label(path),
    )
  }
}

export function isList(value: FieldValue | undefined): value is readonly string[] | readonly VmoduleItem[] {
  return Array.isArray(value)
}

function isZero(value: FieldValue): boolean {
  if (typeof value === 'object') return Object.keys(value).length === 0
  return value === '' || value === false || value === 0 || value === 0n
}
