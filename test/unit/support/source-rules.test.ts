import { describe, expect, it } from 'vitest'
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

const importing = (path: string, module: string) =>
  importComplaints(file(path, `import type { A } from '${module}'\n`))

describe('modeNameComplaints', () => {
  const naming = (path: string, text: string) => modeNameComplaints(file(path, text))

  it('refuses a comparison with the name of a mode outside of the modes', () => {
    expect(naming('src/daemon/daemon.ts', "if (mode === 'ipvs') stop()\n")).toHaveLength(1)
    expect(naming('src/modes/ipvs/mode.ts', "export const NAME = 'ipvs'\n")).toEqual([])
    expect(naming('src/daemon/daemon.ts', "// 'ipvs' is a mode\nconst text = 'IPVS mode'\n")).toEqual([])
  })
})

describe('importComplaints', () => {
  it('allows what the architecture allows', () => {
    expect(importing('src/model/resolve.ts', '../base/ip.ts')).toEqual([])
    expect(importing('src/modes/nftables/plane.ts', '../../reconcile/dataplane.ts')).toEqual([])
    expect(importing('src/modes/registry.ts', './ipvs/mode.ts')).toEqual([])
    expect(importing('src/base/unix-socket.ts', 'node:net')).toEqual([])
    expect(importing('src/modes/foreign/legacy-iptables.ts', 'ffi-rs')).toEqual([])
    expect(importing('src/inspect/nodes/cluster-client.ts', './client-node.ts')).toEqual([])
  })

  it.each([
    ['src/base/ip.ts', '../model/service.ts'],
    ['src/modes/nftables/plane.ts', '../../reconcile/reconciler.ts'],
    ['src/modes/ipvs/plan.ts', '../iptables/plan.ts'],
    ['src/modes/mode.ts', './iptables/plan.ts'],
    ['src/inspect/check/dump.ts', '../../modes/ipvs/read.ts'],
    ['src/daemon/open.ts', '../modes/nftables/mode.ts'],
    ['src/config/settings-from-flags.ts', '../modes/registry.ts'],
    ['src/inspect/check/dump.ts', '../../main.ts'],
    ['src/inspect/nodes/nodes.ts', './client-node.ts'],
    ['src/model/resolve.ts', 'node:fs'],
    ['src/inspect/check/dump.ts', 'ffi-rs'],
    ['src/base/log.ts', 'prom-client'],
  ])('refuses %s importing %s', (path, module) => {
    expect(importing(path, module)).toHaveLength(1)
  })

  it('refuses a folder that no rule knows, a missing extension, and starting processes', () => {
    expect(importing('src/newcomer/a.ts', '../base/ip.ts')[0]).toContain('has no import rule')
    expect(importing('src/base/ip.ts', './octets')[0]).toContain('without its extension')
    expect(importing('src/inspect/check/dump.ts', 'node:child_process')[0]).toContain(
      'only api/exec.ts and source/kube/client/exec-plugin.ts start programs',
    )
  })
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
})

describe('sizeComplaints', () => {
  const body = (lines: number): string => '  step()\n'.repeat(lines)

  it('names long files and long functions', () => {
    expect(sizeComplaints(file('src/a.ts', 'x\n'.repeat(450)))).toEqual([])
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

describe('moduleStateComplaints', () => {
  const complaints = (text: string): string[] => moduleStateComplaints(file('src/a.ts', text))

  it.each([
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
  ])('refuses %s', text => {
    expect(complaints(text)).toHaveLength(1)
  })

  it.each([
    'const a = 1',
    'const a: ReadonlyMap<A, B> = new Map(b)',
    'function f() {\n  let a = 1\n  const b = new Map()\n}',
    'const f = () => new Map()',
    'const a = {\n  b: [1],\n} as const',
    'const a = { b: 1 } as const',
    'const a: readonly number[] = []',
    'const a: Readonly<Record<string, A>> = {\n  b: 1,\n}',
    'const a: Named = { b: 1 }',
    'const { a } = b',
  ])('accepts %s', text => {
    expect(complaints(text)).toEqual([])
  })
})

describe('the rules on words and names', () => {
  it('lets only main.ts exit', () => {
    expect(exitComplaints(file('src/main.ts', 'process.exit(1)'))).toEqual([])
    expect(exitComplaints(file('src/cli/run.ts', 'process.exitCode = 1'))).toHaveLength(1)
    expect(exitComplaints(file('src/cli/run.ts', '// process.exit(1)'))).toEqual([])
    expect(
      exitComplaints(file('src/cli/run.ts', 'const pid = process.pid\nconst { env } = process')),
    ).toEqual([])
  })

  it.each([
    "import { exit } from 'node:process'",
    "import process from 'process'",
    'const { env, exit } = process',
    'const { exit: end } = globalThis.process',
    'const here = process\nhere.exit(1)',
    "process['exit'](1)",
    'process?.exit(1)',
  ])('sees the end of a process in %s', text => {
    expect(exitComplaints(file('src/cli/run.ts', text))).toHaveLength(1)
  })

  it('sees modules that no import names', () => {
    const loading = (text: string, path = 'src/inspect/check/dump.ts') => loadingComplaints(file(path, text))
    expect(loading("process.getBuiltinModule('fs')")).toHaveLength(1)
    expect(loading("import { createRequire } from 'node:module'")).toHaveLength(1)
    expect(loading('await import(name)')).toHaveLength(1)
    expect(loading("await import('yaml')")).toEqual([])
    expect(loading('createRequire(import.meta.url)(path)', 'src/netlink/native.ts')).toEqual([])
  })

  it('tells casts from constants and renamings', () => {
    expect(castComplaints(file('src/a.ts', 'const b = c as D'))).toEqual([
      'src/a.ts:1: a cast: const b = c as D',
    ])
    expect(castComplaints(file('src/a.ts', 'const b = c as\n  D'))).toHaveLength(1)
    expect(castComplaints(file('src/a.ts', 'const b = [1] as const'))).toEqual([])
    expect(castComplaints(file('src/a.ts', "export {\n  a as b,\n} from './b.ts'"))).toEqual([])
    expect(
      castComplaints(file('src/a.ts', "import { b as c } from './b.ts'\nimport * as d from 'd'")),
    ).toEqual([])
    expect(castComplaints(file('src/netlink/schema.ts', 'const b = c as D'))).toEqual([])
  })

  it('finds words for what is left for later', () => {
    expect(unfinishedComplaints(file('src/a.ts', '// TODO: the rest'))).toHaveLength(1)
    expect(unfinishedComplaints(file('src/a.ts', '// all done'))).toEqual([])
  })

  it('wants kebab-case for TypeScript and snake_case for C', () => {
    expect(
      ['src/a/fake-clock.ts', 'test/a.test.ts', 'native/netlink_socket.c'].flatMap(nameComplaints),
    ).toEqual([])
    expect(
      ['src/fakeClock.ts', 'src/Fake.ts', 'native/netlinkSocket.c'].flatMap(nameComplaints),
    ).toHaveLength(3)
  })
})
