import { expect, it } from 'vitest'
import { HELP_FLAG, KUBE_PROXY_FLAGS, OWN_FLAGS, RUN_FLAGS } from '../../../src/config/flags.ts'
import { helpText } from '../../../src/config/help.ts'
import { MODES } from '../../../src/modes/registry.ts'

const PAGE = helpText({
  usage: 'kprobe run [flags]',
  description: 'Keeps the kernel.\n\nUntil SIGTERM.',
  details: ['examples', `  ${'word '.repeat(40).trim()}`],
  flags: [...RUN_FLAGS, HELP_FLAG],
})
const HELP = PAGE({ all: true })

it('names every flag that is not deprecated, with its default', () => {
  for (const { name } of RUN_FLAGS.filter(({ hidden }) => hidden !== true))
    expect(HELP).toMatch(new RegExp(`^  (-\\w, )?--?${name}( |$)`, 'm'))
  expect(HELP).toContain('(default 20ms)')
  expect(HELP).not.toContain('--healthz-port')
})

it('names each flag once, under the heading of its group', () => {
  expect(HELP.match(/^ {2}--cluster-cidr/gm)).toHaveLength(1)
  const headings = HELP.match(/^[A-Z].*:$/gm)
  expect(headings?.slice(0, 3)).toEqual(['Usage:', 'Source and node:', 'Traffic:'])
})

it("separates kube-proxy's flags from kprobe's", () => {
  expect(KUBE_PROXY_FLAGS).toHaveLength(56)
  expect(KUBE_PROXY_FLAGS).toContain('write-config-to')
  const names = RUN_FLAGS.map(({ name }) => name)
  for (const own of OWN_FLAGS) expect(names).toContain(own)
})

it.each([
  [undefined, 100],
  [40, 60],
  [72, 72],
  [96, 96],
  [200, 120],
])('fits a terminal of %s columns in %i', (columns, width) => {
  const lengths = PAGE({ columns, all: true })
    .split('\n')
    .map(line => line.length)
  expect(Math.max(...lengths)).toBeLessThanOrEqual(width)
  expect(Math.max(...lengths)).toBeGreaterThan(width - 10)
})

it('puts the second line of a list below the meaning of the word', () => {
  const details = [
    'What:',
    '  nft   tables and chains '.padEnd(100, 'x').concat(' rules'),
    '',
    'words '.repeat(30).trim(),
  ]
  const lines = helpText({ usage: 'kprobe dump', description: 'Prints.', details, flags: [HELP_FLAG] })({
    columns: 100,
  }).split('\n')
  expect(lines).toContain('        rules')
  expect(lines.filter(line => /^(words ?)+$/.test(line)).length).toBe(2)
})

it('prints the common flags on about two screens, and how many more there are', () => {
  const short = PAGE({ columns: 100 })
  expect(short.split('\n').length).toBeLessThan(70)
  for (const name of ['source', 'proxy-mode', 'cluster-cidr', 'once', 'help-all'])
    expect(short).toMatch(new RegExp(`^  --${name}( |$)`, 'm'))
  expect(short).not.toContain('--kube-api-qps')
  const shown = RUN_FLAGS.filter(({ hidden, rare }) => hidden !== true && rare !== true).length
  const all = RUN_FLAGS.filter(({ hidden }) => hidden !== true).length
  expect(short).toContain(`\n${all - shown} more flags: kprobe run --help-all\n`)
  expect(HELP).not.toContain('more flags')
})

it('says what the log levels are', () => {
  expect(PAGE().replace(/\s+/g, ' ')).toContain(
    '-v LEVEL log level: 0 logs problems and state changes, 1 prints the table of Services and its changes without a terminal, too, 2 adds',
  )
})

it('has no short form where every flag is common', () => {
  const page = helpText({ usage: 'kprobe cleanup', description: 'Removes.', flags: [HELP_FLAG] })
  expect(page({})).toBe(page({ all: true }))
})

it('names every proxy mode of the registry', () => {
  const text = PAGE({ columns: 120 }).replace(/\s+/g, ' ')
  for (const { name, purpose } of MODES)
    expect(text).toContain(purpose === undefined ? name : `${name} (${purpose})`)
})
