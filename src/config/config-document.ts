import { open, stat } from 'node:fs/promises'
import { codeOf } from '../base/errors.ts'
import type { ReadResult } from '../base/followed-text.ts'
import { readToEnd } from '../base/octets.ts'
import { nearest, PLACEHOLDER_REASON, placeholderIn } from '../base/text.ts'
import { isJson, type Json } from '../model/fields.ts'
import { scalarValue, type VmoduleItem, whyNotValue } from './field-values.ts'
import { type FieldPath, fieldAt, isFieldPath, namesBelow } from './fields.ts'
import { type ConfigError, quote } from './flag.ts'
import { Settings } from './settings.ts'
import { Places, type Spot, yamlDocuments } from './yaml-document.ts'

export const API_VERSION = 'kubeproxy.config.k8s.io/v1alpha1'
export const KIND = 'KubeProxyConfiguration'

interface ConfigDocument {
  readonly settings: Settings
  /** Errors that invalidate the whole file. */
  readonly errors: readonly ConfigError[]
  /** Unknown and repeated fields; kube-proxy ignores them as well. */
  readonly warnings: readonly string[]
}

/**
 * Reads YAML or JSON as kube-proxy does: strictly, but with a warning for unknown or repeated fields. Messages call the
 * file `name`: `config.yaml:3:15: conntrack.min: …`.
 */
export function readConfigDocument(text: string, name: string): ConfigDocument {
  const read = yamlDocuments(text)
  if (read.kind === 'problems') {
    const errors = read.problems.map(({ spot, message }) => ({ path: placeOf(name, spot), message }))
    return { settings: emptySettings(name), errors, warnings: [] }
  }
  const [first, second] = read.documents
  const reader = new DocumentReader(name, first?.places ?? new Places())
  if (second === undefined) reader.readRoot(first?.value)
  else
    reader.errors.push({
      path: placeOf(name, second.places.valueOf('')),
      message: `a second document begins here; ${WANTED}, and nothing else`,
    })
  return reader
}

function emptySettings(name: string): Settings {
  return new Settings(path => `${name}: ${path}`)
}

function placeOf(name: string, { line, column }: Spot): string {
  return `${name}:${line}:${column}`
}

class DocumentReader implements ConfigDocument {
  readonly settings: Settings
  readonly errors: ConfigError[] = []
  readonly warnings: string[] = []
  readonly #name: string
  readonly #places: Places

  constructor(name: string, places: Places) {
    this.#name = name
    this.#places = places
    this.settings = emptySettings(name)
  }

  readRoot(root: unknown): void {
    if (root === undefined) this.errors.push({ path: this.#name, message: `is empty; ${WANTED}` })
    else if (!isJson(root)) this.#fail('', `is not a mapping; ${WANTED}`)
    else if (this.#isOurs(root)) {
      this.#readFields(root, '')
      for (const { path, spot } of this.#places.repeated)
        this.warnings.push(`${placeOf(this.#name, spot)}: ${path}: repeated; the last one counts`)
    }
  }

  /** Checks the kind: every field of a file of another kind would be unknown. */
  #isOurs(root: Json): boolean {
    const wrong = Object.entries({ apiVersion: API_VERSION, kind: KIND }).filter(
      ([name, wanted]) => root[name] !== wanted,
    )
    for (const [name, wanted] of wrong)
      this.#fail(
        name,
        name in root ? `${quote(String(root[name]))} is not ${wanted}` : `is missing; ${WANTED}`,
      )
    return wrong.length === 0
  }

  #readFields(fields: Json, prefix: string): void {
    for (const [name, value] of Object.entries(fields)) {
      const path = prefix === '' ? name : `${prefix}.${name}`
      if (isFieldPath(path)) this.#readField(value, path)
      else if (name !== '' && namesBelow(path).length > 0) this.#readSection(value, path)
      else if (path !== 'apiVersion' && path !== 'kind') this.#unknown(name, prefix, path)
    }
  }

  #readSection(value: unknown, path: string): void {
    if (isJson(value)) this.#readFields(value, path)
    else if (value !== null) this.#fail(path, `is not a mapping of ${namesBelow(path).join(', ')}`)
  }

  #unknown(name: string, prefix: string, path: string): void {
    const near = nearest(name, namesBelow(prefix))
    const hint = near === undefined ? '' : `; did you mean ${near}?`
    const place = placeOf(this.#name, this.#places.keyOf(path))
    this.warnings.push(`${place}: ${path}: unknown field ignored${hint}`)
  }

  #readField(given: unknown, path: FieldPath): void {
    const { kind, pointer } = fieldAt(path)
    // Null is invalid for Go's duration type, and valid for a pointer to one.
    if (given === null && (kind !== 'duration' || pointer === true)) return
    if (kind === 'texts') this.#readTexts(given, path)
    else if (kind === 'gates') this.#readGates(given, path)
    else {
      const value = kind === 'vmodule' ? this.#vmodule(given, path) : scalarValue(kind, given)
      if (value === undefined) this.#fail(path, whyNotValue(kind, given))
      else this.settings.set(path, { value, label: this.#label(path) })
    }
  }

  #readTexts(given: unknown, path: FieldPath): void {
    if (!Array.isArray(given)) {
      this.#fail(path, whyNotValue('texts', given))
      return
    }
    const items: readonly unknown[] = given
    const value = items.flatMap((item, index) => {
      const text = item ?? ''
      if (typeof text === 'string') return [text]
      this.#fail(`${path}[${index}]`, whyNotValue('text', text))
      return []
    })
    const itemLabels = items.map((_, index) => this.#label(`${path}[${index}]`))
    this.settings.set(path, { value, label: this.#label(path), itemLabels })
  }

  #readGates(given: unknown, path: FieldPath): void {
    if (!isJson(given)) {
      this.#fail(path, whyNotValue('gates', given))
      return
    }
    const gates = Object.entries(given).flatMap(([name, value]): [string, boolean][] => {
      if (value === null || typeof value === 'boolean') return [[name, value ?? false]]
      this.#fail(`${path}.${name}`, whyNotValue('bool', value))
      return []
    })
    const itemLabels = gates.map(
      ([name]) => `${placeOf(this.#name, this.#places.valueOf(`${path}.${name}`))}: ${path}`,
    )
    this.settings.set(path, { value: Object.fromEntries(gates), label: this.#label(path), itemLabels })
  }

  #vmodule(given: unknown, path: string): readonly VmoduleItem[] | undefined {
    if (!Array.isArray(given)) return undefined
    const items: readonly unknown[] = given
    return items.flatMap((item, index) => {
      const at = `${path}[${index}]`
      const { filePattern = '', verbosity = 0 } = isJson(item) ? item : {}
      const level = scalarValue('uint32', verbosity)
      if (!isJson(item)) this.#fail(at, whyNotValue('vmodule', item))
      else if (typeof filePattern !== 'string')
        this.#fail(`${at}.filePattern`, whyNotValue('text', filePattern))
      else if (typeof level !== 'number') this.#fail(`${at}.verbosity`, whyNotValue('uint32', verbosity))
      else return [{ filePattern, verbosity: level }]
      return []
    })
  }

  #label(path: string): string {
    const place = placeOf(this.#name, this.#places.valueOf(path))
    return path === '' ? place : `${place}: ${path}`
  }

  #fail(path: string, message: string): void {
    this.errors.push({ path: this.#label(path), message })
  }
}

const WANTED = `the file holds one ${KIND} of ${API_VERSION}`

/**
 * Maximum size of a configuration file: a hundred times that of a whole configuration. It bounds the cost of a hostile
 * file.
 */
export const CONFIG_BYTES_MAX = 256 << 10

export class ConfigFileError extends Error {
  override readonly name = 'ConfigFileError'
}

/** Reads the text of a configuration file, which may be a pipe. Throws ConfigFileError. */
export async function readConfigFile(path: string): Promise<string> {
  try {
    const file = await open(path, 'r')
    try {
      const bytes = await readToEnd(file, CONFIG_BYTES_MAX)
      if (bytes !== undefined) return decode(bytes)
    } finally {
      await file.close()
    }
  } catch (error) {
    if (error instanceof ConfigFileError) throw error
    throw new ConfigFileError(`cannot be read (${codeOf(error)})`, { cause: error })
  }
  throw new ConfigFileError(`is larger than ${CONFIG_BYTES_MAX} bytes`)
}

/** Reads a file that is followed. Refuses a pipe, which has only one text: the next read would block forever. */
export async function readFollowed(path: string): Promise<ReadResult<readonly ConfigError[]>> {
  try {
    if ((await stat(path)).isFile()) return { text: await readConfigFile(path) }
    return { error: [{ path, message: 'is not a regular file: changes cannot be followed' }] }
  } catch (error) {
    const message = error instanceof ConfigFileError ? error.message : `cannot be read (${codeOf(error)})`
    return { error: [{ path, message }] }
  }
}

function decode(bytes: Uint8Array): string {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes)
  } catch (error) {
    throw new ConfigFileError('is not UTF-8 text', { cause: error })
  }
}

export type Environment = Readonly<Record<string, string | undefined>>

interface Expanded {
  readonly text: string
  readonly errors: readonly ConfigError[]
}

/**
 * Replaces `$(NAME)` in a configuration file by the environment variable of that name, so that nodes can share one
 * ConfigMap. Comment lines stay as they are. An unset variable is an error, unlike in the arguments of a container. A
 * remaining placeholder is an error, too.
 */
export function expandVariables({ path, text }: { path: string; text: string }, env: Environment): Expanded {
  const errors: ConfigError[] = []
  const fail = (line: number, message: string) => errors.push({ path: `${path}:${line + 1}`, message })
  const lines = text.split('\n').map((line, at) => {
    if (line.trimStart().startsWith('#')) return line
    const expanded = line.replace(/\$\((\w+)\)/g, (whole, name: string) => {
      const value = env[name]
      if (value !== undefined && !/[\r\n]/.test(value)) return value
      const why = value === undefined ? 'is not set' : 'has more than one line'
      fail(at, `${whole}: the environment variable ${name} ${why}`)
      return ''
    })
    const left = placeholderIn(expanded)
    if (left !== undefined) fail(at, `${quote(line.trim())}: ${left} ${PLACEHOLDER_REASON}`)
    return expanded
  })
  return { text: lines.join('\n'), errors }
}
