import { parse } from '@babel/parser'
import type { Node, Statement, VariableDeclarator } from '@babel/types'

/** What the rules of the architecture ask about a file. */
export interface SourceFacts {
  /** Modules that it imports or re-exports, types included, as written. */
  readonly imports: readonly string[]
  /** Those of them that are loaded together with the file: neither types nor import(). */
  readonly loadedImports: readonly string[]
  /** Functions, methods and braced arrow functions. */
  readonly functions: readonly FunctionSpan[]
  /** Declarations of the module itself that can change after it was loaded. */
  readonly state: readonly string[]
  /** Lines of `as` and `<T>`, `as const` aside. */
  readonly casts: readonly number[]
  /** Places that end the process, or through which it could be ended out of sight of the rules. */
  readonly endings: readonly string[]
  /** Ways to load a module that no import names. */
  readonly hiddenImports: readonly HiddenImport[]
}

interface FunctionSpan {
  readonly name: string
  /** Of its first line, from 1. */
  readonly line: number
  readonly lines: number
}

type HiddenImport = 'getBuiltinModule' | 'createRequire' | 'import()'

export const ARROW = 'arrow function'

/** Reads TypeScript and JavaScript; with JSX, `<T>` in front of a value is an element. */
export function factsOf(text: string, hasJsx = false): SourceFacts {
  const { program } = parse(text, {
    sourceType: 'module',
    plugins: hasJsx ? ['typescript', 'jsx'] : ['typescript'],
    attachComment: false,
  })
  const facts = {
    imports: [] as string[],
    loadedImports: [] as string[],
    functions: [] as FunctionSpan[],
    state: program.body.flatMap(stateOf(text)),
    casts: [] as number[],
    endings: [] as string[],
    hiddenImports: [] as HiddenImport[],
  }
  visit(program, [], (node, parents) => {
    facts.imports.push(...importedBy(node))
    facts.loadedImports.push(...loadedBy(node))
    facts.functions.push(...functionAt(node, parents.at(-1)))
    facts.casts.push(...castAt(node))
    facts.endings.push(...endingAt(node, parents, text))
    facts.hiddenImports.push(...hiddenImportAt(node))
  })
  return facts
}

/** C as it is written here: a function ends at a brace in the first column. */
export function functionsOfC(text: string): readonly FunctionSpan[] {
  const lines = text.split('\n')
  const found: FunctionSpan[] = []
  let start: { readonly name: string; readonly line: number } | undefined
  for (const [index, line] of lines.entries()) {
    const name = /^(?:\w[^=;]*[ *])?(\w+)\([^;]*$/.exec(line)?.[1]
    if (name !== undefined && start === undefined) start = { name, line: index + 1 }
    if (start !== undefined && line.endsWith(';') && !/^\s/.test(line)) start = undefined
    if (start === undefined || line !== '}') continue
    found.push({ ...start, lines: index + 2 - start.line })
    start = undefined
  }
  return found
}

/** Of the parents of a node, the innermost is the last. */
function visit(node: Node, parents: Node[], look: (node: Node, parents: readonly Node[]) => void): void {
  look(node, parents)
  parents.push(node)
  for (const value of Object.values(node)) {
    for (const child of Array.isArray(value) ? value : [value]) if (isNode(child)) visit(child, parents, look)
  }
  parents.pop()
}

function isNode(value: unknown): value is Node {
  return typeof value === 'object' && value !== null && 'type' in value && 'start' in value
}

function importedBy(node: Node): readonly string[] {
  switch (node.type) {
    case 'ImportDeclaration':
    case 'ExportAllDeclaration':
      return [node.source.value]
    case 'ExportNamedDeclaration':
      return node.source ? [node.source.value] : []
    case 'TSImportType':
      return node.argument.type === 'StringLiteral' ? [node.argument.value] : []
    case 'CallExpression': {
      const [module] = node.arguments
      return node.callee.type === 'Import' && module?.type === 'StringLiteral' ? [module.value] : []
    }
    default:
      return []
  }
}

function loadedBy(node: Node): readonly string[] {
  switch (node.type) {
    case 'ImportDeclaration':
      return node.importKind === 'type' ? [] : [node.source.value]
    case 'ExportAllDeclaration':
    case 'ExportNamedDeclaration':
      return node.exportKind === 'type' || !node.source ? [] : [node.source.value]
    default:
      return []
  }
}

function hiddenImportAt(node: Node): readonly HiddenImport[] {
  if (node.type === 'Identifier')
    return node.name === 'getBuiltinModule' || node.name === 'createRequire' ? [node.name] : []
  const isHidden =
    node.type === 'CallExpression' &&
    node.callee.type === 'Import' &&
    node.arguments[0]?.type !== 'StringLiteral'
  return isHidden ? ['import()'] : []
}

function functionAt(node: Node, parent: Node | undefined): readonly FunctionSpan[] {
  if (!('params' in node) || !('body' in node) || !isNode(node.body)) return []
  if (node.body.type !== 'BlockStatement') return []
  const [first, last] = [node.loc?.start.line ?? 0, node.body.loc?.end.line ?? 0]
  return [{ name: nameOf(node, parent), line: first, lines: last - first + 1 }]
}

function nameOf(node: Node, parent: Node | undefined): string {
  const own = 'key' in node ? node.key : 'id' in node ? node.id : undefined
  const named = own ?? (parent?.type === 'VariableDeclarator' ? parent.id : undefined)
  if (!isNode(named)) return ARROW
  if (named.type === 'Identifier') return named.name
  return named.type === 'PrivateName' ? `#${named.id.name}` : ARROW
}

function castAt(node: Node): readonly number[] {
  if (node.type !== 'TSAsExpression' && node.type !== 'TSTypeAssertion') return []
  const { typeAnnotation: type } = node
  const isConstant =
    type.type === 'TSTypeReference' && type.typeName.type === 'Identifier' && type.typeName.name === 'const'
  return isConstant ? [] : [type.loc?.start.line ?? 0]
}

const CONTAINER = /^(?:Weak)?(?:Map|Set)$|Array$|^ArrayBuffer$|^DataView$/
const MUTABLE_TYPE =
  /\b(?:Map|Set|WeakMap|WeakSet|Array|Record)\s*<|\[\s*\]|\[[^\]]*\]\s*:|^:\s*[{[]|\b(?:object|unknown)\b/
const READ_ONLY_TYPE = /Readonly|readonly/

/** `let` and `var`, and containers, buffers and literals that are not declared read-only; types with a name of ours are. */
function stateOf(text: string): (statement: Statement) => readonly string[] {
  const textOf = ({ start, end }: Node) => text.slice(start ?? 0, end ?? 0)
  const isMutable = ({ id, init }: VariableDeclarator): boolean => {
    if (id.type !== 'Identifier') return false
    const type = id.typeAnnotation ? textOf(id.typeAnnotation) : undefined
    if (type !== undefined && READ_ONLY_TYPE.test(type)) return false
    if (init?.type === 'ObjectExpression' || init?.type === 'ArrayExpression')
      return type === undefined || MUTABLE_TYPE.test(type)
    if (init?.type === 'NewExpression')
      return init.callee.type === 'Identifier' && CONTAINER.test(init.callee.name)
    return init?.type === 'CallExpression' && textOf(init.callee).startsWith('Buffer.')
  }
  return statement => {
    const declared = statement.type === 'ExportNamedDeclaration' ? statement.declaration : statement
    if (declared?.type !== 'VariableDeclaration') return []
    const found = declared.declarations.filter(one => declared.kind !== 'const' || isMutable(one))
    return found.map(one => `${declared.kind} ${textOf(one.id)}`)
  }
}

const ENDS = ['exit', 'exitCode', 'abort', 'kill', 'reallyExit']

/** `process` used for an end, by a name that only the run tells, or under another name. */
function endingAt(node: Node, parents: readonly Node[], text: string): readonly string[] {
  if (!isProcess(node)) return []
  const [call, user] = [parents.at(-2), parents.at(-1)]
  const textOf = (of: Node) => text.slice(of.start ?? 0, of.end ?? 0).split('\n')[0] ?? ''
  if (isMember(user) && user.object === node) {
    if (!user.computed && !isEnd(user.property)) return []
    return [textOf(call?.type === 'CallExpression' ? call : user)]
  }
  if (user?.type === 'VariableDeclarator' && user.id.type === 'ObjectPattern') {
    const taken = user.id.properties.filter(each => each.type === 'RestElement' || isEnd(each.key))
    return taken.length > 0 ? [textOf(user)] : []
  }
  const isRenamed = user !== undefined && (renamedIn(user) === node || user.type === 'SpreadElement')
  return isRenamed ? [textOf(user)] : []
}

function isProcess(node: Node): boolean {
  if (isMember(node))
    return nameIs(node.object, 'globalThis') && nameIs(node.property, 'process') && !node.computed
  return nameIs(node, 'process')
}

function isEnd(name: Node): boolean {
  return name.type === 'Identifier' && ENDS.includes(name.name)
}

function nameIs(node: Node, name: string): boolean {
  return node.type === 'Identifier' && node.name === name
}

/** What is given a name here. */
function renamedIn(node: Node): Node | null | undefined {
  if (node.type === 'VariableDeclarator') return node.init
  return node.type === 'AssignmentExpression' || node.type === 'AssignmentPattern' ? node.right : undefined
}

type Member = Extract<Node, { type: 'MemberExpression' | 'OptionalMemberExpression' }>

function isMember(node: Node | undefined): node is Member {
  return node?.type === 'MemberExpression' || node?.type === 'OptionalMemberExpression'
}
