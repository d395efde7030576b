import { describe, expect, it } from 'vitest'
import { factsOf, functionsOfC } from '../../support/source-facts.ts'

const spans = (source: string): string[] =>
  factsOf(source).functions.map(({ name, line, lines }) => `${name}@${line}+${lines}`)

describe('functions', () => {
  it('are measured from their first line to the closing brace, with methods and arrow functions', () => {
    expect(spans('function f(\n  a: number,\n): void {\n}\n')).toEqual(['f@1+4'])
    expect(spans('class A {\n  async #m(): Promise<void> {\n  }\n  get size() {\n  }\n}')).toEqual([
      '#m@2+2',
      'size@4+2',
    ])
    expect(spans('const g = (a: T): U => {\n}\nrun(x => {\n})')).toEqual(['g@1+2', 'arrow function@3+2'])
  })

  it('have generics and return types that are objects', () => {
    expect(spans('function f<T>(a: T): { b: T } | undefined {\n}')).toEqual(['f@1+2'])
    expect(spans('export function* walk<V>(a: V): Steps<V> {\n}')).toEqual(['walk@1+2'])
  })

  it('are no other braces, nor those of strings, comments and regular expressions', () => {
    expect(spans('if (a) {\n}\nswitch (b) {\n  case c(d): {\n  }\n}\ntry {\n} catch (e) {\n}')).toEqual([])
    expect(spans("const a = 'function f() {'\n// () => {\nconst b = /{/\ninterface C {\n}")).toEqual([])
  })

  it('of C end at a brace in the first column', () => {
    const source =
      'static int helper(int a);\nstatic int\nopen_it(int a)\n{\n  if (a) {\n  }\n}\nstruct s {\n  int b;\n};\n'
    expect(functionsOfC(source)).toEqual([{ name: 'open_it', line: 3, lines: 5 }])
    expect(functionsOfC('int f(int a,\n      int b)\n{\n}\nint g(void) {\n}\n')).toEqual([
      { name: 'f', line: 1, lines: 4 },
      { name: 'g', line: 5, lines: 2 },
    ])
  })
})

describe('imports', () => {
  it('are imports, type imports, re-exports, bare and dynamic imports, over several lines', () => {
    const source = [
      "import a from './a.ts'",
      "import type { B } from './b.ts'",
      "import {\n  c,\n  type D,\n} from '../c.ts'",
      "export * from './e.ts'",
      "import 'node:f'",
      "const g = await import('./g.ts')",
      "type H = import('./h.ts').H",
      "// import i from './i.ts'",
      'const j = "from \'./j.ts\'"',
      "Buffer.from('k')",
    ].join('\n')
    const modules = ['./a.ts', './b.ts', '../c.ts', './e.ts', 'node:f', './g.ts', './h.ts']
    expect(factsOf(source).imports).toEqual(modules)
  })
})

describe('state', () => {
  it('is of the module itself, and not inside of a function or a block', () => {
    expect(factsOf('let a = 1\nfunction f() {\n  let b = 2\n}\n{\n  let c\n}\nexport let d').state).toEqual([
      'let a',
      'let d',
    ])
  })
})
