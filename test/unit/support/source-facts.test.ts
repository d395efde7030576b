import { describe, expect, it } from 'vitest'
import { codeOnly, functionsOf, importsOf, topLevelLines } from '../../support/source-text.ts'

describe('codeOnly', () => {
  it('blanks comments, strings, templates and regular expressions, and keeps every line and column', () => {
    const source = [
      "const a = 'let x' // let y",
      '/* let',
      // biome-ignore lint/suspicious/noTemplateCurlyInString: it is source text
      '   z */ const b = `let ${f({ a: `}` })} let`',
      'const c = /let [/"]/g.exec(s)',
      'const d = 4 / 2 / e',
    ].join('\n')
    const code = codeOnly(source)
    expect(code.split('\n').map(line => line.length)).toEqual(source.split('\n').map(line => line.length))
    expect(code).not.toContain('let')
    expect(code).toContain('f({ a: ')
    expect(code).toContain('.exec(s)')
    expect(code).toContain('4 / 2 / e')
  })
})

describe('functionsOf', () => {
  const spans = (source: string): string[] =>
    functionsOf(source).map(({ name, line, lines }) => `${name}@${line}+${lines}`)

  it('measures functions, methods and arrow functions from their parameters to the closing brace', () => {
    expect(spans('function f(\n  a: number,\n): void {\n}\n')).toEqual(['f@1+4'])
    expect(spans('class A {\n  async #m(): Promise<void> {\n  }\n  get size() {\n  }\n}')).toEqual([
      '#m@2+2',
      'size@4+2',
    ])
    expect(spans('const g = (a: T): U => {\n}\nrun(x => {\n})')).toEqual(['g@1+2', 'arrow function@3+2'])
  })

  it('reads through generics and return types that are objects', () => {
    expect(spans('function f<T>(a: T): { b: T } | undefined {\n}')).toEqual(['f@1+2'])
    expect(spans('export function* walk<V>(a: V): Steps<V> {\n}')).toEqual(['walk@1+2'])
  })

  it('takes no other brace for a function', () => {
    const source =
      'if (a) {\n}\nfor (const b of c(d)) {\n}\nswitch (e) {\n  case f(g): {\n  }\n}\nconst h = { i: 1 }\n'
    expect(spans(`${source}try {\n} catch (j) {\n}\nwhile (k) {\n}\ninterface L {\n}`)).toEqual([])
    expect(spans('function f(): A {\n  return b\n}\nclass C {\n}')).toEqual(['f@1+3'])
  })

  it('measures C', () => {
    expect(spans('static int\nopen_it(int a)\n{\n  if (a) {\n  }\n}\nstruct s {\n  int b;\n};\n')).toEqual([
      'open_it@2+5',
    ])
  })
})

describe('importsOf', () => {
  it('finds imports, type imports, re-exports, bare and dynamic imports, over several lines', () => {
    const source = [
      "import a from './a.ts'",
      "import type { B } from './b.ts'",
      "import {\n  c,\n  type D,\n} from '../c.ts'",
      "export * from './e.ts'",
      "import 'node:f'",
      "const g = await import('./g.ts')",
      "// import h from './h.ts'",
      'const i = "from \'./i.ts\'"',
      "Buffer.from('j')",
    ].join('\n')
    expect(importsOf(source)).toEqual(['./a.ts', './b.ts', '../c.ts', './e.ts', 'node:f', './g.ts'])
  })
})

describe('topLevelLines', () => {
  it('leaves out what is inside braces and parentheses', () => {
    const lines = topLevelLines('let a = 1\nfunction f() {\n  let b = 2\n}\ng(\n  let_c,\n)\nlet d')
    expect(lines.filter(line => /let/.test(line))).toEqual(['let a = 1', 'let d'])
  })
})
