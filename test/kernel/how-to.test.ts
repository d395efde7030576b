import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { missingLines, Page, PageShell } from '../support/page.ts'

/* The worked examples of the how-tos for operators. */

const PAGES = ['service-does-not-answer', 'move-a-node', 'report-a-bug', 'why-a-packet-is-dropped'].map(
  name => `docs/how-to/${name}.md`,
)

describe.each(PAGES)('%s', path => {
  const page = new Page(path)
  const steps = page.steps('sh')
  let outputs: readonly string[]
  let shell: PageShell

  beforeAll(async () => {
    const [opening] = page.ofKind('sh shell')
    if (opening === undefined) throw new Error(`${path} opens no shell`)
    shell = new PageShell({ command: `exec ${opening.text}` })
    outputs = await shell.run(steps)
  })

  afterAll(() => shell?.end())

  test.each(steps.map((step, index) => ({ ...step, index })).filter(({ said }) => said !== ''))(
    'prints what it says: $command',
    ({ said, index }) => {
      expect(missingLines(said, outputs[index] ?? ''), `among\n${outputs[index]}`).toEqual([])
    },
  )

  test('has blocks that this test runs or compares, and no others', () => {
    expect(new Set(page.blocks.map(({ kind }) => kind))).toEqual(new Set(['sh shell', 'sh', 'console']))
    expect(steps.filter(({ said }) => said !== '').length).toBeGreaterThanOrEqual(3)
  })
})
