import { expect, it } from 'vitest'
import { KUBE_PROXY_FLAGS, OWN_FLAGS, RUN_FLAGS } from '../../../src/config/flags.ts'
import { helpText } from '../../../src/config/help.ts'

const HELP = helpText({ usage: 'kprobe run [flags]', description: 'Runs.', flags: RUN_FLAGS })

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

it("tells kube-proxy's flags from ours", () => {
  expect(KUBE_PROXY_FLAGS).toHaveLength(56)
  expect(KUBE_PROXY_FLAGS).toContain('write-config-to')
  const names = RUN_FLAGS.map(({ name }) => name)
  for (const own of OWN_FLAGS) expect(names).toContain(own)
})

it('fits a terminal of 100 columns', () => {
  for (const line of HELP.split('\n')) expect(line.length).toBeLessThanOrEqual(100)
})
