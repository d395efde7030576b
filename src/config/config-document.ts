import { open, stat } from 'node:fs/promises'
import { codeOf } from '../base/errors.ts'
import { readToEnd } from '../base/octets.ts'
import { nearest, PLACEHOLDER_REASON, placeholderIn } from '../base/text.ts'
import { type FieldValue, scalarValue, type VmoduleItem, whyNotValue } from './field-values.ts'
import { type FieldPath, fieldAt, isFieldPath, namesBelow } from './fields.ts'
import { type ConfigError, quote } from './flag.ts'
import { Settings } from './settings.ts'
import { type Spot, TooManyEntries, type TreeEntry, type TreeNode, yamlTrees } from './yaml-tree.ts'

export const API_VERSION = 'kubeproxy.config.k8s.io/v1alpha1'
export const KIND = 'KubeProxyConfiguration'

/** A parsed configuration file with all its errors and warnings. */
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
  const trees = yamlTrees(text)
  if (trees.kind === 'problems') {
    const errors = trees.problems.map(({ spot, message }) => ({ path: placeOf(name, spot), message }))
    return { settings: emptySettings(name), errors, warnings: [] }
  }
  const reader = new DocumentReader(name)
  try {
    reader.readRoots(trees.roots)
  } catch (error) {
    if (!(error instanceof TooManyEntries)) throw error
    reader.errors.push({ path: name, message: error.message })
  }
  return reader
}

function emptySettings(name: string): Settings {
  return new Settings(path => `${name}: ${path}`)
}

function placeOf(name: string, { line, column }: Spot): string {
  return `${name}:${line}:${column}`
}

type NamedEntry = TreeEntry & { readonly name: string }

class DocumentReader implements ConfigDocument {
  readonly settings: Settings
  readonly errors: ConfigError[] = []
  readonly warnings: string[] = []
  readonly #name: string

  constructor(name: string) {
    this.#name = name
    this.settings = emptySettings(name)
  }

  readRoots([root, second]: readonly TreeNode[]): void {
    if (root === undefined) this.errors.push({ path: this.#name, message: `is empty; ${WANTED}` })
    else if (second !== undefined)
      this.errors.push({
        path: placeOf(this.#name, second.spot),
        message: `a second document begins here; ${WANTED}, and nothing else`,
      })
    else if (root.content.kind !== 'mapping') this.#fail(root, '', `is not a mapping; ${WANTED}`)
    else {
      const entries = root.content.entries()
      if (this.#isOurs(root, entries)) this.#readEntries(entries, '')
    }
  }

  /** Checks the kind: every field of a file of another kind would be unknown. */
  #isOurs(root: TreeNode, entries: readonly TreeEntry[]): boolean {
    let ours = true
    for (const [name, wanted] of Object.entries({ apiVersion: API_VERSION, kind: KIND })) {
      const entry = entries.find(each => each.name === name && !each.overridden)
      const value = entry?.node.content.kind === 'scalar' ? entry.node.content.value : undefined
      if (value === wanted) continue
      ours = false
      if (entry === undefined) this.#fail(root, name, `is missing; ${WANTED}`)
      else this.#fail(entry.node, name, `${quote(String(value))} is not ${wanted}`)
    }
    return ours
  }

  #readEntries(entries: readonly TreeEntry[], prefix: string): void {
    for (const entry of this.#named(entries, prefix)) {
      const path = prefix === '' ? entry.name : `${prefix}.${entry.name}`
      if (entry.overridden) this.#warn(entry, path, REPEATED)
      else if (isFieldPath(path)) this.#readField(entry.node, path)
      else if (entry.name !== '' && namesBelow(path).length > 0) this.#readSection(entry.node, path)
      else if (prefix !== '' || (path !== 'apiVersion' && path !== 'kind')) this.#unknown(entry, prefix, path)
    }
  }

  #named(entries: readonly TreeEntry[], prefix: string): readonly NamedEntry[] {
    return entries.flatMap(entry => {
      const { name } = entry
      if (name !== undefined) return [{ ...entry, name }]
      this.errors.push({
        path: `${placeOf(this.#name, entry.spot)}${prefix === '' ? '' : `: ${prefix}`}`,
        message: 'is not a field name',
      })
      return []
    })
  }

  #readSection(node: TreeNode, path: string): void {
    const { content } = node
    if (content.kind === 'mapping') this.#readEntries(content.entries(), path)
    else if (content.kind === 'list' || content.value !== null)
      this.#fail(node, path, `is not a mapping of ${namesBelow(path).join(', ')}`)
  }

  #unknown(entry: NamedEntry, prefix: string, path: string): void {
    const near = nearest(entry.name, namesBelow(prefix))
    const hint = near === undefined ? '' : `; did you mean ${near}?`
    this.#warn(entry, path, `unknown field ignored${hint}`)
  }

  #readField(node: TreeNode, path: FieldPath): void {
    const { kind, pointer } = fieldAt(path)
    const { content } = node
    const label = this.#label(node, path)
    // Null is invalid for Go's duration type, and valid for a pointer to one.
    const nullable = kind !== 'duration' || pointer === true
    if (content.kind === 'scalar' && content.value === null && nullable) return
    if (kind === 'texts') this.#readTexts(node, path)
    else if (kind === 'gates') this.#readGates(node, path)
    else if (kind === 'vmodule') this.#set(path, this.#readVmodule(node, path), label)
    else {
      const value = content.kind === 'scalar' ? scalarValue(kind, content.value) : undefined
      if (value === undefined) this.#fail(node, path, whyNotValue(kind, plain(node)))
      this.#set(path, value, label)
    }
  }

  #set(path: FieldPath, value: FieldValue | undefined, label: string): void {
    if (value !== undefined) this.settings.set(path, { value, label })
  }

  #readTexts(node: TreeNode, path: FieldPath): void {
    if (node.content.kind !== 'list') {
      this.#fail(node, path, whyNotValue('texts', plain(node)))
      return
    }
    const items = node.content.items()
    const value: string[] = []
    for (const [index, item] of items.entries()) {
      const text = plain(item) ?? ''
      if (typeof text === 'string') value.push(text)
      else this.#fail(item, `${path}[${index}]`, whyNotValue('text', text))
    }
    const itemLabels = items.map((item, index) => this.#label(item, `${path}[${index}]`))
    this.settings.set(path, { value, label: this.#label(node, path), itemLabels })
  }

  #readGates(node: TreeNode, path: FieldPath): void {
    if (node.content.kind !== 'mapping') {
      this.#fail(node, path, whyNotValue('gates', plain(node)))
      return
    }
    const gates: [string, boolean][] = []
    const itemLabels: string[] = []
    for (const entry of this.#named(node.content.entries(), path)) {
      const below = `${path}.${entry.name}`
      const value = plain(entry.node) ?? false
      if (entry.overridden) this.#warn(entry, below, REPEATED)
      else if (typeof value === 'boolean') {
        gates.push([entry.name, value])
        itemLabels.push(this.#label(entry.node, path))
      } else this.#fail(entry.node, below, whyNotValue('bool', value))
    }
    this.settings.set(path, { value: Object.fromEntries(gates), label: this.#label(node, path), itemLabels })
  }

  #readVmodule(node: TreeNode, path: FieldPath): FieldValue | undefined {
    if (node.content.kind !== 'list') {
      this.#fail(node, path, whyNotValue('vmodule', plain(node)))
      return undefined
    }
    return node.content.items().flatMap((item, index) => this.#readVmoduleItem(item, `${path}[${index}]`))
  }

  #readVmoduleItem(node: TreeNode, path: string): readonly VmoduleItem[] {
    if (node.content.kind !== 'mapping') {
      this.#fail(node, path, whyNotValue('vmodule', plain(node)))
      return []
    }
    let filePattern = ''
    let verbosity = 0
    for (const entry of this.#named(node.content.entries(), path)) {
      const value = plain(entry.node)
      const below = `${path}.${entry.name}`
      if (entry.overridden) this.#warn(entry, below, REPEATED)
      else if (entry.name === 'filePattern' && typeof value === 'string') filePattern = value
      else if (entry.name === 'filePattern') this.#fail(entry.node, below, whyNotValue('text', value))
      else if (entry.name === 'verbosity') {
        const level = scalarValue('uint32', value)
        if (typeof level === 'number') verbosity = level
        else this.#fail(entry.node, below, whyNotValue('uint32', value))
      } else this.#warn(entry, below, 'unknown field ignored')
    }
    return [{ filePattern, verbosity }]
  }

  #label(node: TreeNode, path: string): string {
    const place = placeOf(this.#name, node.spot)
    return path === '' ? place : `${place}: ${path}`
  }

  #fail(node: TreeNode, path: string, message: string): void {
    this.errors.push({ path: this.#label(node, path), message })
  }

  #warn(entry: TreeEntry, path: string, message: string): void {
    this.warnings.push(`${placeOf(this.#name, entry.spot)}: ${path}: ${message}`)
  }
}

const REPEATED = 'repeated; the last one counts'
const WANTED = `the file holds one ${KIND} of ${API_VERSION}`

function plain({ content }: TreeNode): unknown {
  if (content.kind === 'scalar') return content.value
  return content.kind === 'list' ? [] : {}
}

/**
 * Maximum size of a configuration file: a hundred times that of a whole configuration. It bounds the cost of a hostile
 * file.
 */
export const CONFIG_BYTES_MAX = 256 << 10

/** The reason why a configuration file cannot be read. */
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

/** Reads a file that is polled. Refuses a pipe, which has only one text: the next read would block forever. */
export async function readConfigFileAgain(path: string): Promise<string> {
  if (!(await isRegular(path))) throw new ConfigFileError('is not a regular file: changes cannot be followed')
  return await readConfigFile(path)
}

async function isRegular(path: string): Promise<boolean> {
  try {
    return (await stat(path)).isFile()
  } catch (error) {
    throw new ConfigFileError(`cannot be read (${codeOf(error)})`, { cause: error })
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
