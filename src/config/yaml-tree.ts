import {
  type Document,
  isAlias,
  isMap,
  isNode,
  isScalar,
  isSeq,
  LineCounter,
  type Node,
  parseAllDocuments,
  visit,
} from 'yaml'

/** Maximum number of entries and items in a file, with the copies of aliases and merges; real files have 80. */
const ENTRIES_MAX = 10_000
/** Maximum depth of merges within merges; real files have none. */
const MERGE_DEPTH_MAX = 8

/** A position; lines and columns count from 1. */
export interface Spot {
  readonly line: number
  readonly column: number
}

/** A value in a YAML document with its position. A reader that descends expands aliases level by level. */
export interface TreeNode {
  readonly spot: Spot
  readonly content:
    | { readonly kind: 'scalar'; readonly value: unknown }
    | { readonly kind: 'mapping'; readonly entries: () => readonly TreeEntry[] }
    | { readonly kind: 'list'; readonly items: () => readonly TreeNode[] }
}

export interface TreeEntry {
  /** Undefined for null, a list or a mapping, which cannot be a name in JSON. */
  readonly name: string | undefined
  readonly spot: Spot
  readonly node: TreeNode
  /** A later entry of the same mapping has the same name and overrides this one. */
  readonly overridden: boolean
}

interface YamlProblem {
  readonly spot: Spot
  readonly message: string
}

type YamlTrees =
  | { readonly kind: 'trees'; readonly roots: readonly TreeNode[] }
  | { readonly kind: 'problems'; readonly problems: readonly YamlProblem[] }

/** The error for a file whose aliases expand too far. */
export class TooManyEntries extends Error {
  override readonly name = 'TooManyEntries'
}

/**
 * Gives the non-empty documents of a YAML stream. Scalars have the meaning of Go's YAML library, with which kube-proxy
 * reads files (YAML 1.1 without sexagesimal numbers and dates). Only `entries` and `items` expand aliases, and they
 * throw TooManyEntries, so that the cost is bounded for any text.
 */
export function yamlTrees(text: string): YamlTrees {
  const lineCounter = new LineCounter()
  const spotAt = (offset: number): Spot => {
    const { line, col } = lineCounter.linePos(offset)
    return { line: Math.max(1, line), column: Math.max(1, col) }
  }
  const documents = parseWithin(text, lineCounter)
  if (documents === undefined)
    return { kind: 'problems', problems: [{ spot: { line: 1, column: 1 }, message: 'is nested too deeply' }] }
  const problems = documents
    .flatMap(({ errors }) => errors)
    .map(({ pos, message }) => ({ spot: spotAt(pos[0]), message: message.split('\n')[0] ?? message }))
  const budget = { left: ENTRIES_MAX }
  const trees = documents.map(document => ({ document, tree: new Tree(document, spotAt, budget) }))
  problems.push(...trees.flatMap(({ tree }) => tree.problems))
  if (problems.length > 0) return { kind: 'problems', problems }
  const roots = trees.flatMap(({ document: { contents }, tree }) => {
    if (!isNode(contents) || (isScalar(contents) && contents.value === null)) return []
    return [tree.node(contents, 0)]
  })
  return { kind: 'trees', roots }
}

/** Parses a text; undefined if its nesting exceeds the stack. */
function parseWithin(text: string, lineCounter: LineCounter): readonly Document[] | undefined {
  try {
    const documents = parseAllDocuments(text, {
      version: '1.1',
      merge: false,
      uniqueKeys: false,
      prettyErrors: false,
      logLevel: 'silent',
      lineCounter,
      customTags: tags => tags.filter(tag => typeof tag === 'string' || isPlainTag(tag)),
    })
    return Array.isArray(documents) ? documents : []
  } catch (error) {
    if (error instanceof RangeError) return undefined
    throw error
  }
}

function isPlainTag(tag: { readonly tag: string; readonly format?: string }): boolean {
  return /:(map|seq|str|null|bool|int|float)$/.test(tag.tag) && tag.format !== 'TIME'
}

class Tree {
  /** Aliases without an anchor. */
  readonly problems: YamlProblem[] = []
  readonly #spotAt: (offset: number) => Spot
  readonly #budget: { left: number }
  /** Anchors by name, in the order of the text; a name may repeat. */
  readonly #anchors = new Map<string, Node[]>()

  constructor(document: Document, spotAt: (offset: number) => Spot, budget: { left: number }) {
    this.#spotAt = spotAt
    this.#budget = budget
    visit(document, {
      Node: (_, node) => {
        if (isAlias(node)) this.#checkAlias(node.source, startOf(node, 0))
        else if (node.anchor !== undefined)
          this.#anchors.set(node.anchor, [...(this.#anchors.get(node.anchor) ?? []), node])
      },
    })
  }

  #checkAlias(name: string, offset: number): void {
    if (!this.#anchors.has(name))
      this.problems.push({
        spot: this.#spotAt(offset),
        message: `no anchor ${name} precedes this alias`,
      })
  }

  node(given: unknown, fallbackOffset: number): TreeNode {
    const spot = this.#spotAt(isNode(given) ? startOf(given, fallbackOffset) : fallbackOffset)
    const node = this.#follow(given)
    if (isMap(node)) {
      return { spot, content: { kind: 'mapping', entries: () => this.#entries(node, 0) } }
    }
    if (isSeq(node)) {
      const items = () => {
        this.#spend(node.items.length)
        return node.items.map(item => this.node(item, startOf(node, fallbackOffset)))
      }
      return { spot, content: { kind: 'list', items } }
    }
    return { spot, content: { kind: 'scalar', value: isScalar(node) ? node.value : null } }
  }

  /** Resolves an alias, which cannot stand for another alias. */
  #follow(node: unknown): unknown {
    if (!isAlias(node)) return node
    const at = startOf(node, 0)
    return this.#anchors.get(node.source)?.findLast(each => startOf(each, 0) < at)
  }

  #entries(map: unknown, depth: number): readonly TreeEntry[] {
    if (!isMap(map) || depth > MERGE_DEPTH_MAX) return []
    this.#spend(map.items.length)
    const own: Omit<TreeEntry, 'overridden'>[] = []
    const merged: unknown[] = []
    for (const { key, value } of map.items) {
      const offset = isNode(key) ? startOf(key, 0) : 0
      if (isScalar(key) && key.type === 'PLAIN' && key.value === '<<') merged.push(...this.#parts(value))
      else {
        const name = isScalar(key) && key.value !== null ? String(key.value) : undefined
        own.push({ name, spot: this.#spotAt(offset), node: this.node(value, offset) })
      }
    }
    return this.#withMerged(lastCounts(own), merged, depth)
  }

  /** Merges entries. The mapping's own entries take precedence, then those of earlier merges. */
  #withMerged(own: readonly TreeEntry[], merged: readonly unknown[], depth: number): readonly TreeEntry[] {
    const names = new Set(own.map(({ name }) => name))
    const entries = [...own]
    for (const part of merged)
      for (const entry of this.#entries(this.#follow(part), depth + 1)) {
        if (entry.overridden || names.has(entry.name)) continue
        names.add(entry.name)
        entries.push(entry)
      }
    return entries
  }

  #parts(value: unknown): readonly unknown[] {
    const node = this.#follow(value)
    if (!isSeq(node)) return [node]
    this.#spend(node.items.length)
    return node.items
  }

  #spend(entries: number): void {
    this.#budget.left -= entries
    if (this.#budget.left < 0)
      throw new TooManyEntries(`holds more than ${ENTRIES_MAX} entries, those that aliases repeat included`)
  }
}

function lastCounts(entries: readonly Omit<TreeEntry, 'overridden'>[]): readonly TreeEntry[] {
  const last = new Map(entries.map(({ name }, index) => [name, index]))
  return entries.map((entry, index) => ({ ...entry, overridden: last.get(entry.name) !== index }))
}

function startOf(node: Node, fallback: number): number {
  return node.range?.[0] ?? fallback
}
