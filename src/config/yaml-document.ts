import {
  type Document,
  isMap,
  isNode,
  isScalar,
  isSeq,
  LineCounter,
  parseAllDocuments,
  type Tags,
} from 'yaml'

export interface Spot {
  readonly line: number
  readonly column: number
}

interface YamlDocument {
  readonly value: unknown
  readonly places: Places
}

/** The positions of fields by path: `conntrack.min`, `nodePortAddresses[0]`. */
export class Places {
  readonly #keys = new Map<string, Spot>()
  readonly #values = new Map<string, Spot>()
  /** Fields that a later one of the same name overrides. */
  readonly repeated: { readonly path: string; readonly spot: Spot }[] = []

  note(path: string, key: Spot, value: Spot): void {
    const before = this.#keys.get(path)
    if (before !== undefined) this.repeated.push({ path, spot: before })
    this.#keys.set(path, key)
    this.#values.set(path, value)
  }

  keyOf(path: string): Spot {
    return nearestIn(this.#keys, path)
  }

  valueOf(path: string): Spot {
    return nearestIn(this.#values, path)
  }
}

/** A field that an alias or a merge gives has the position of the innermost mapping that the file has at its path. */
function nearestIn(spots: ReadonlyMap<string, Spot>, path: string): Spot {
  const spot = spots.get(path)
  if (spot !== undefined) return spot
  return path === '' ? { line: 1, column: 1 } : nearestIn(spots, path.replace(/[.[]?[^.[]*$/, ''))
}

interface YamlProblem {
  readonly spot: Spot
  readonly message: string
}

type YamlDocuments =
  | { readonly kind: 'documents'; readonly documents: readonly YamlDocument[] }
  | { readonly kind: 'problems'; readonly problems: readonly YamlProblem[] }

/**
 * Reads the non-empty documents of a YAML stream. Scalars have the meaning of Go's YAML library, with which kube-proxy
 * reads files (YAML 1.1 without sexagesimal numbers and dates). The library refuses aliases that expand too far.
 */
export function yamlDocuments(text: string): YamlDocuments {
  try {
    return read(text)
  } catch (error) {
    // The parser throws RangeError where the nesting exceeds the stack, and ReferenceError for an alias that it refuses.
    if (error instanceof RangeError)
      return { kind: 'problems', problems: [problemOf('is nested too deeply')] }
    if (error instanceof ReferenceError) return { kind: 'problems', problems: [problemOf(error.message)] }
    throw error
  }
}

function problemOf(message: string): YamlProblem {
  return { spot: { line: 1, column: 1 }, message }
}

function read(text: string): YamlDocuments {
  const lineCounter = new LineCounter()
  const spotAt = (offset: number): Spot => {
    const { line, col } = lineCounter.linePos(offset)
    return { line: Math.max(1, line), column: Math.max(1, col) }
  }
  const parsed = parseAllDocuments(text, {
    version: '1.1',
    merge: true,
    uniqueKeys: false,
    prettyErrors: false,
    logLevel: 'silent',
    lineCounter,
    customTags: plainTags,
  })
  const all: readonly Document[] = Array.isArray(parsed) ? parsed : []
  const problems = all
    .flatMap(({ errors }) => errors)
    .map(({ pos, message }) => ({ spot: spotAt(pos[0]), message: message.split('\n')[0] ?? message }))
  if (problems.length > 0) return { kind: 'problems', problems }
  const documents = all.flatMap(document => {
    const value: unknown = document.toJS()
    return value === null ? [] : [{ value, places: placesIn(document, spotAt) }]
  })
  return { kind: 'documents', documents }
}

const plainTags = (tags: Tags): Tags =>
  tags.filter(
    tag =>
      typeof tag === 'string' ||
      (/:(map|seq|str|null|bool|int|float|merge)$/.test(tag.tag) &&
        !('format' in tag && tag.format === 'TIME')),
  )

function placesIn({ contents }: Document, spotAt: (offset: number) => Spot): Places {
  const places = new Places()
  const spotOf = (node: unknown, otherwise: Spot) =>
    isNode(node) && node.range ? spotAt(node.range[0]) : otherwise
  const note = (node: unknown, path: string, key: Spot): void => {
    const spot = spotOf(node, key)
    places.note(path, key, spot)
    if (isSeq(node)) for (const [index, item] of node.items.entries()) note(item, `${path}[${index}]`, spot)
    if (!isMap(node)) return
    for (const { key: name, value } of node.items) {
      const field = isScalar(name) ? String(name.value) : ''
      note(value, path === '' ? field : `${path}.${field}`, spotOf(name, spot))
    }
  }
  const start = spotOf(contents, spotAt(0))
  note(contents, '', start)
  return places
}
