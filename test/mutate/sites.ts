import { createHash } from 'node:crypto'
import { parse } from '@babel/parser'
import type { Node } from '@babel/types'
import { append } from '../../src/base/collections.ts'
import { createRandom } from '../support/apiserver/random.ts'

/** One small change of a source file, such as a mistake that a person makes. */
export interface Mutation {
  /** From the top folder. */
  readonly path: string
  /** From 1. */
  readonly line: number
  readonly kind: Kind
  /** What stands there, and what takes its place. */
  readonly before: string
  readonly after: string
  readonly start: number
  readonly form: Form
  /** The line changes when the module is loaded, and not when a function runs. */
  readonly isAtLoad: boolean
  /** It begins a statement of a block. */
  readonly beginsStatement: boolean
}

type Form = 'expression' | 'statement' | 'element' | 'properties'
const FORMS: Partial<Readonly<Record<Kind, Form>>> = {
  'statement gone': 'statement',
  'element gone': 'element',
  'spread gone': 'properties',
}

type Kind =
  | 'negated'
  | 'operator'
  | 'number'
  | 'boolean'
  | 'constant'
  | 'word'
  | 'statement gone'
  | 'element gone'
  | 'spread gone'
  | 'arguments swapped'
  | 'filter gone'

/**
 * Writes all mutations of a file into its text. `globalThis.mutant(NUMBER)` says which of them counts: one program holds
 * all, and stays compiled.
 */
export function withSwitches(text: string, mutations: readonly Numbered[]): string {
  const write = (start: number, end: number, inside: readonly Numbered[], isWithin: boolean): string => {
    let [written, at] = ['', start]
    let rest = inside
    for (let [first] = rest; first !== undefined; [first] = rest) {
      const { start: from, before, beginsStatement } = first
      const last = from + before.length
      const within = rest.filter(its => its.start < last)
      rest = rest.filter(its => its.start >= last)
      const own = within.filter(its => its.start === from && its.before === before)
      const others = within.filter(its => !own.includes(its))
      // Source without semicolons: a parenthesis would go on with the line before.
      const begin = beginsStatement && !(isWithin && from === start) ? ';' : ''
      written += text.slice(at, from) + begin
      written += own.reduce((kept, its) => switched(its, kept), write(from, last, others, true))
      at = last
    }
    return written + text.slice(at, end)
  }
  // The longest of those that begin at one place holds the others.
  const inOrder = mutations.toSorted(
    (a, b) => a.start - b.start || b.before.length - a.before.length || rankOf(a) - rankOf(b),
  )
  return write(0, text.length, inOrder, false)
}

/** Gives the text of a file with this mutation in it, as a person would have written the mistake. */
export function withMutation(
  text: string,
  { form, start, before, after, beginsStatement }: Mutation,
): string {
  const written = { expression: `(${after})`, statement: '{}', element: '...[]', properties: '...{}' }[form]
  // Source without semicolons: a parenthesis would go on with the line before.
  return text.slice(0, start) + (beginsStatement ? ';' : '') + written + text.slice(start + before.length)
}

/** Expressions come first: what else begins and ends with one is written around it. */
function rankOf({ form }: Mutation): number {
  return form === 'expression' ? 0 : 1
}

export interface Numbered extends Mutation {
  readonly number: number
}

function switched({ number, form, after }: Numbered, kept: string): string {
  const counts = `globalThis.mutant(${number})`
  switch (form) {
    case 'expression':
      return `(${counts} ? (${after}) : (${kept}))`
    case 'statement':
      return `{ if (!${counts}) { ${kept} } }`
    case 'element':
      return kept.startsWith('...')
        ? `...(${counts} ? [] : ${kept.slice(3)})`
        : `...(${counts} ? [] : [${kept}])`
    case 'properties':
      return `...(${counts} ? {} : ${kept.slice(3)})`
  }
}

/** Lets each loop count its turns by `globalThis.turn()`, which ends those that have no end. */
export function withCountedLoops(text: string): string {
  const { program } = parse(text, { sourceType: 'module', plugins: ['typescript'], attachComment: false })
  const added: (readonly [at: number, text: string])[] = []
  visit(program, [], node => {
    if (!LOOPS.test(node.type) || !('body' in node) || !isNode(node.body)) return
    const { start, end } = node.body
    added.push([start ?? 0, '{ globalThis.turn(); '], [end ?? 0, ' }'])
  })
  added.sort(([a], [b]) => a - b)
  let [written, from] = ['', 0]
  for (const [at, its] of added) {
    written += text.slice(from, at) + its
    from = at
  }
  return written + text.slice(from)
}

const LOOPS = /^(?:For|ForIn|ForOf|While|DoWhile)Statement$/

/** Lists what can be changed in a file. Types, imports and the texts of errors are left alone. */
export function mutationsOf(path: string, text: string): readonly Mutation[] {
  const { program } = parse(text, { sourceType: 'module', plugins: ['typescript'], attachComment: false })
  const constants = new Map<string, Set<string>>()
  const found: Mutation[] = []
  const begins = new Set<number>()
  const textOf = ({ start, end }: Node) => text.slice(start ?? 0, end ?? 0)
  visit(program, [], (node, parents) => {
    if (node.type === 'ExpressionStatement' && BLOCK.test(parents.at(-1)?.type ?? ''))
      begins.add(node.start ?? 0)
    if (node.type !== 'Identifier' || !CONSTANT.test(node.name)) return
    const family = familyOf(node, { parent: parents.at(-1), textOf })
    constants.set(family, (constants.get(family) ?? new Set()).add(node.name))
  })
  visit(program, [], (node, parents) => {
    for (const [kind, its, after] of changesOf(node, { parent: parents.at(-1), textOf, text, constants }))
      found.push({
        path,
        line: its.loc?.start.line ?? 0,
        kind,
        start: its.start ?? 0,
        before: textOf(its),
        after,
        form: FORMS[kind] ?? 'expression',
        isAtLoad: !parents.some(({ type }) => FUNCTIONS.test(type)),
        beginsStatement: begins.has(its.start ?? 0),
      })
  })
  return found
}

const FUNCTIONS = /Function|Method/
const BLOCK = /^(?:BlockStatement|Program|SwitchCase)$/

interface Around {
  readonly parent: Node | undefined
  readonly text: string
  readonly textOf: (node: Node) => string
  /** All constants that the file names, by their families. */
  readonly constants: ReadonlyMap<string, ReadonlySet<string>>
}

type Change = readonly [kind: Kind, node: Node, after: string]

const CONSTANT = /^[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+$/

/** The first word of a constant's name, behind the namespace that it is read from: `nft.NF`. */
function familyOf(
  node: Extract<Node, { type: 'Identifier' }>,
  { parent, textOf }: Pick<Around, 'parent' | 'textOf'>,
): string {
  const space = isMember(node, parent) ? `${textOf(parent.object)}.` : ''
  return space + node.name.slice(0, node.name.indexOf('_'))
}

function isMember(
  node: Node,
  parent: Node | undefined,
): parent is Extract<Node, { type: 'MemberExpression' }> {
  return parent?.type === 'MemberExpression' && parent.property === node && !parent.computed
}

const OPERATORS: Readonly<Record<string, readonly string[]>> = {
  '===': ['!=='],
  '!==': ['==='],
  '<': ['<=', '>='],
  '<=': ['<', '>'],
  '>': ['>=', '<='],
  '>=': ['>', '<'],
  '+': ['-'],
  '-': ['+'],
  '*': ['/'],
  '/': ['*'],
  '%': ['*'],
  '&': ['|'],
  '|': ['&'],
  '<<': ['>>'],
  '>>>': ['<<'],
  '&&': ['||'],
  '||': ['&&'],
  '??': ['&&'],
}

/** Words of which one is easily written for the other. */
const WORDS: Readonly<Record<string, string>> = Object.fromEntries(
  [
    ['IPv4', 'IPv6'],
    ['ip', 'ip6'],
    ['eq', 'neq'],
    ['source', 'destination'],
    ['TCP', 'UDP'],
    ['all', 'local'],
    ['Cluster', 'Local'],
    ['ClusterIP', 'ExternalIP'],
    ['nat', 'filter'],
    ['INPUT', 'FORWARD'],
    ['PREROUTING', 'OUTPUT'],
    ['ACCEPT', 'DROP'],
    ['jump', 'goto'],
  ].flatMap(([a = '', b = '']) => [
    [a, b],
    [b, a],
  ]),
)

function changesOf(node: Node, around: Around): readonly Change[] {
  const { parent, textOf } = around
  switch (node.type) {
    case 'IfStatement':
    case 'ConditionalExpression':
      return [['negated', node.test, `!(${textOf(node.test)})`]]
    case 'UnaryExpression':
      return node.operator === '!' ? [['negated', node, textOf(node.argument)]] : []
    case 'BinaryExpression':
    case 'LogicalExpression':
      return operatorChanges(node, around)
    case 'NumericLiteral':
      return [-1, 1].map(by => ['number', node, `(${node.value + by})`] as const)
    case 'BooleanLiteral':
      return [['boolean', node, `${!node.value}`]]
    case 'StringLiteral': {
      const word = WORDS[node.value]
      return word === undefined || (parent?.type === 'ObjectProperty' && parent.key === node)
        ? []
        : [['word', node, `'${word}'`]]
    }
    case 'Identifier':
      return constantChanges(node, around)
    case 'ExpressionStatement':
      return node.expression.type === 'YieldExpression' || isAssert(node.expression)
        ? []
        : [['statement gone', node, '']]
    case 'ReturnStatement':
    case 'ContinueStatement':
      return parent?.type === 'IfStatement' ? [['statement gone', node, '']] : []
    case 'ArrayExpression':
      return node.elements.flatMap(its => (its === null ? [] : [['element gone', its, ''] as const]))
    case 'ObjectExpression':
      return node.properties.flatMap(its =>
        its.type === 'SpreadElement' ? [['spread gone', its, ''] as const] : [],
      )
    case 'CallExpression':
      return callChanges(node, around)
    default:
      return []
  }
}

function operatorChanges(
  node: Extract<Node, { type: 'BinaryExpression' | 'LogicalExpression' }>,
  { text, textOf }: Around,
): readonly Change[] {
  const { left, right, operator } = node
  const [start, end] = [left.end ?? 0, right.start ?? 0]
  const gap = text.slice(start, end)
  const at = gap.indexOf(operator)
  // `x ?? y && z` is no expression: operands need parentheses.
  if (node.type === 'LogicalExpression')
    return (OPERATORS[operator] ?? []).map(other => {
      return ['operator', node, `(${textOf(left)}) ${other} (${textOf(right)})`] as const
    })
  return (OPERATORS[operator] ?? []).map(other => {
    const between = gap.slice(0, at) + other + gap.slice(at + operator.length)
    return [
      'operator',
      node,
      text.slice(node.start ?? 0, start) + between + text.slice(end, node.end ?? 0),
    ] as const
  })
}

function constantChanges(
  node: Extract<Node, { type: 'Identifier' }>,
  { parent, textOf, constants }: Around,
): readonly Change[] {
  const { name } = node
  const isNamed =
    (parent?.type === 'VariableDeclarator' && parent.id === node) ||
    (parent?.type === 'ObjectProperty' && (parent.key === node || parent.shorthand)) ||
    parent?.type === 'ClassProperty' ||
    parent?.type === 'FunctionDeclaration'
  if (!CONSTANT.test(name) || isNamed) return []
  const family = constants.get(familyOf(node, { parent, textOf })) ?? []
  const others = [...family].filter(other => other !== name)
  if (!isMember(node, parent)) return others.map(other => ['constant', node, other] as const)
  return others.map(other => ['constant', parent, `${textOf(parent.object)}.${other}`] as const)
}

function callChanges(
  node: Extract<Node, { type: 'CallExpression' }>,
  { textOf, text }: Around,
): readonly Change[] {
  const { callee, arguments: given } = node
  const changes: Change[] = []
  for (const [index, first] of given.entries()) {
    const second = given[index + 1]
    if (second === undefined || isFunction(first) || isFunction(second)) continue
    const between = text.slice(first.end ?? 0, second.start ?? 0)
    const [before, behind] = [
      text.slice(node.start ?? 0, first.start ?? 0),
      text.slice(second.end ?? 0, node.end ?? 0),
    ]
    if (textOf(first) !== textOf(second))
      changes.push(['arguments swapped', node, before + textOf(second) + between + textOf(first) + behind])
  }
  if (callee.type === 'MemberExpression' && callee.property.type === 'Identifier')
    if (['filter', 'sort', 'reverse'].includes(callee.property.name))
      changes.push(['filter gone', node, textOf(callee.object)])
  return changes
}

function isFunction({ type }: Node): boolean {
  return type === 'ArrowFunctionExpression' || type === 'FunctionExpression' || type === 'SpreadElement'
}

function isAssert(node: Node): boolean {
  return node.type === 'CallExpression' && node.callee.type === 'Identifier' && node.callee.name === 'assert'
}

function visit(node: Node, parents: Node[], look: (node: Node, parents: readonly Node[]) => void): void {
  const isLeftAlone =
    /^(?:TS(?!As|Satisfies|NonNull)|Import|ExportAll|ThrowStatement)/.test(node.type) || isAssert(node)
  if (isLeftAlone) return
  look(node, parents)
  parents.push(node)
  for (const value of Object.values(node))
    for (const child of Array.isArray(value) ? value : [value]) if (isNode(child)) visit(child, parents, look)
  parents.pop()
}

function isNode(value: unknown): value is Node {
  return typeof value === 'object' && value !== null && 'type' in value && 'start' in value
}

/**
 * Chooses mutations: each kind as often as another, as far as there are any. A mutation is drawn by what it changes: after a
 * change elsewhere the same seed chooses the same ones.
 */
export function chosenFrom(
  mutations: readonly Mutation[],
  { seed, count }: { readonly seed: number; readonly count: number },
): readonly Numbered[] {
  const lot = ({ path, kind, before, after, line }: Mutation) =>
    [path, kind, before, after]
      .reduce((all, part) => all.update(`${part}\0`), createHash('sha1').update(`${seed}`))
      .digest('hex') + line
  const byKind = new Map<Kind, { readonly lot: string; readonly mutation: Mutation }[]>()
  for (const mutation of mutations) append(byKind, mutation.kind, { lot: lot(mutation), mutation })
  const kinds = [...byKind.values()].map(its => its.sort((a, b) => (a.lot < b.lot ? -1 : 1)))
  const rounds = Array.from({ length: Math.max(0, ...kinds.map(its => its.length)) }, (_, round) =>
    kinds.flatMap(its => its[round] ?? []),
  )
  return rounds
    .flat()
    .slice(0, count)
    .map(({ mutation }, index) => ({ ...mutation, number: index + 1 }))
}

/**
 * Chooses a mutation in each of `count` lines, which lie at equal distances in the list of all lines that can be changed: a
 * file gets its share, and after a change elsewhere the same seed chooses nearly the same places.
 */
export function chosenByLine(
  mutations: readonly Mutation[],
  { seed, count }: { readonly seed: number; readonly count: number },
): readonly Mutation[] {
  const byLine = new Map<string, Mutation[]>()
  for (const mutation of mutations) append(byLine, `${mutation.path}:${mutation.line}`, mutation)
  const lines = [...byLine.values()]
  const wanted = Math.min(count, lines.length)
  return Array.from({ length: wanted }, (_, index) => {
    // A sequence of its own for each: what one of them draws moves none of the others.
    const random = createRandom(seed * 1_000_003 + index)
    const line = lines[Math.floor(((index + random()) / wanted) * lines.length)] ?? []
    const kind = random.pick([...new Set(line.map(its => its.kind))])
    return random.pick(line.filter(its => its.kind === kind))
  })
}
