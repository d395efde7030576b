import { describe, expect, it } from 'vitest'
import { folderCircleComplaints, openDoorComplaints, wallComplaints } from '../../support/folder-rules.ts'
import { factsOf, functionsOfC } from '../../support/source-facts.ts'
import {
  castComplaints,
  circleComplaints,
  exitComplaints,
  sourceFile as file,
  importComplaints,
  loadingComplaints,
  modeNameComplaints,
  moduleStateComplaints,
  nameComplaints,
  sizeComplaints,
  unfinishedComplaints,
} from '../../support/source-rules.ts'

/* What the rules accept is what src/ contains: test/architecture.test.ts holds them against it. */

type Rule = (source: ReturnType<typeof file>) => readonly string[]

const REFUSED: readonly (readonly [rule: Rule, path: string, texts: readonly string[]])[] = [
  [modeNameComplaints, 'src/daemon/daemon.ts', ["if (mode === 'ipvs') stop()\n"]],
  [castComplaints, 'src/a.ts', ['const b = c as D', 'const b = c as\n  D']],
  [unfinishedComplaints, 'src/a.ts', ['// TODO: the rest']],
  [
    openDoorComplaints,
    'src/optional-parts.ts',
    ["import { Prover } from './proof/prover.ts'", "export { Prover } from './proof/prover.ts'"],
  ],
  [
    loadingComplaints,
    'src/inspect/check/dump.ts',
    ["process.getBuiltinModule('fs')", "import { createRequire } from 'node:module'", 'await import(name)'],
  ],
  [
    exitComplaints,
    'src/cli/run.ts',
    [
      'process.exitCode = 1',
      "import { exit } from 'node:process'",
      "import process from 'process'",
      'const { env, exit } = process',
      'const { exit: end } = globalThis.process',
      'const here = process\nhere.exit(1)',
      "process['exit'](1)",
      'process?.exit(1)',
    ],
  ],
  [
    moduleStateComplaints,
    'src/a.ts',
    [
      'let a = 1',
      'export let a',
      'var a',
      'const a = new Map()',
      'const a = Buffer.alloc(4)',
      'const a: Map<A, B> = new Map(b)',
      'const a = {}',
      'export const a = [\n  1,\n]',
      'const a: number[] = []',
      'const a: Record<string, A> = {}',
      'const a: { b: number } = { b: 1 }',
      'const a = new Set()',
    ],
  ],
]

for (const [rule, path, texts] of REFUSED)
  describe(rule.name, () => {
    it.each(texts)('refuses %s', text => {
      expect(rule(file(path, text))).toHaveLength(1)
    })
  })

it.each<[Rule, string, string]>([
  [modeNameComplaints, 'src/daemon/daemon.ts', "// 'ipvs' is a mode\nconst text = 'IPVS mode'\n"],
  [exitComplaints, 'src/cli/run.ts', '// process.exit(1)'],
  [castComplaints, 'src/a.ts', "export {\n  a as b,\n} from './b.ts'"],
  [openDoorComplaints, 'src/optional-parts.ts', "export type { Prover } from './proof/prover.ts'"],
  [moduleStateComplaints, 'src/a.ts', 'const { a } = b'],
  [sizeComplaints, 'src/a.ts', 'x\n'.repeat(450)],
])('accepts %O in %s: %s', (rule, path, text) => {
  expect(rule(file(path, text))).toEqual([])
})

describe('importComplaints and wallComplaints', () => {
  it.each<[Rule, string, string]>([
    [importComplaints, 'src/base/ip.ts', '../model/service.ts'],
    [importComplaints, 'src/modes/nftables/plane.ts', '../../reconcile/reconciler.ts'],
    [importComplaints, 'src/modes/ipvs/plan.ts', '../iptables/plan.ts'],
    [importComplaints, 'src/modes/mode.ts', './iptables/plan.ts'],
    [importComplaints, 'src/inspect/check/dump.ts', '../../modes/ipvs/read.ts'],
    [importComplaints, 'src/daemon/open.ts', '../modes/nftables/mode.ts'],
    [importComplaints, 'src/config/settings-from-flags.ts', '../modes/registry.ts'],
    [importComplaints, 'src/inspect/check/dump.ts', '../../main.ts'],
    [importComplaints, 'src/inspect/nodes/nodes.ts', './client-node.ts'],
    [importComplaints, 'src/model/resolve.ts', 'node:fs'],
    [importComplaints, 'src/inspect/check/dump.ts', 'ffi-rs'],
    [importComplaints, 'src/base/log.ts', 'prom-client'],
    [importComplaints, 'src/newcomer/a.ts', '../base/ip.ts'],
    [importComplaints, 'src/base/ip.ts', './octets'],
    [wallComplaints, 'src/daemon/open.ts', '../proof/prover.ts'],
    [wallComplaints, 'src/cli/cleanup.ts', '../inspect/check/doctor.ts'],
    [wallComplaints, 'src/config/own-flags.ts', '../api/grpc/address.ts'],
    [wallComplaints, 'src/daemon/open.ts', '../relay/open.ts'],
  ])('%O: refuses %s importing %s', (rule, path, module) => {
    expect(rule(file(path, `import type { A } from '${module}'\n`))).toHaveLength(1)
  })
})

it('importComplaints: refuses to start processes elsewhere', () => {
  const source = file('src/inspect/check/dump.ts', "import 'node:child_process'")
  expect(importComplaints(source)[0]).toContain(
    'only api/exec.ts and source/kube/client/exec-plugin.ts start programs',
  )
})

describe('circleComplaints', () => {
  it('names the files of a circle, and says nothing about a diamond', () => {
    const a = file('src/a.ts', "import './b.ts'\nimport './c.ts'")
    const b = file('src/b.ts', "import './d.ts'")
    const c = file('src/c.ts', "import './d.ts'")
    expect(circleComplaints([a, b, c, file('src/d.ts', '')])).toEqual([])
    const back = file('src/d.ts', "import type { A } from './a.ts'")
    expect(circleComplaints([a, b, c, back])).toContain(
      'circle: src/a.ts -> src/b.ts -> src/d.ts -> src/a.ts',
    )
  })

  it('names folders that import each other by different files, at every depth', () => {
    const up = file('src/config/flags.ts', "import { MODES } from '../modes/registry.ts'")
    const down = file('src/modes/mode.ts', "import type { Config } from '../config/config.ts'")
    expect(folderCircleComplaints([up, down])).toEqual(['circle: src/config -> src/modes -> src/config'])
    const a = file('src/kernel/nft/a.ts', "import '../xt/b.ts'")
    const b = file('src/kernel/xt/c.ts', "import '../nft/d.ts'")
    expect(folderCircleComplaints([a, b])).toEqual([
      'circle: src/kernel/nft -> src/kernel/xt -> src/kernel/nft',
    ])
  })
})

describe('sizeComplaints', () => {
  const body = (lines: number): string => '  step()\n'.repeat(lines)

  it('names long files and long functions', () => {
    expect(sizeComplaints(file('src/a.ts', 'x\n'.repeat(451)))).toEqual([
      'src/a.ts: 451 lines, more than 450',
    ])
    expect(sizeComplaints(file('src/a.ts', `function f() {\n${body(58)}}\n`))).toEqual([])
    expect(sizeComplaints(file('src/a.ts', `\nfunction f() {\n${body(59)}}\n`))).toEqual([
      'src/a.ts:2: f has 61 lines, more than 60',
    ])
  })

  it('lets a suite of tests be long, in tests only', () => {
    const suite = `describe('a', () => {\n${body(90)}})\n`
    expect(sizeComplaints(file('test/unit/a.test.ts', suite))).toEqual([])
    expect(sizeComplaints(file('src/a.ts', suite))).toHaveLength(1)
  })
})

it('wants kebab-case for TypeScript and snake_case for C', () => {
  const wrong = ['src/fakeClock.ts', 'src/Fake.ts', 'native/netlinkSocket.c']
  expect(wrong.flatMap(nameComplaints)).toHaveLength(3)
})

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
