import { describe, expect, it } from 'vitest'
import { planLines, tableText } from '../../../src/cli/io.ts'
import { syncText } from '../../../src/cli/run.ts'
import type { Sync } from '../../../src/daemon/io.ts'
import { parseObject } from '../../../src/model/parse.ts'
import { applyEvents, EMPTY_SNAPSHOT } from '../../../src/model/snapshot.ts'
import { tableOf } from '../../support/tables.ts'

describe('tableText', () => {
  it('keeps hostile cells on their line', () => {
    expect(tableText(['A'], [['x\ny\u001b[31m']], { color: false })).toBe('A\nx\\u{a}y\\u{1b}[31m\n')
  })
})

describe('planLines', () => {
  it('groups objects by Service, with a sign each', () => {
    const text = [
      ...planLines([
        { verb: 'add', object: 'table ip kube-proxy', service: undefined },
        { verb: 'change', object: 'element a', service: 'ns/a' },
        { verb: 'remove', object: 'element b', service: 'ns/a' },
        { verb: 'remove', object: 'element c', service: 'ns/b' },
      ]),
    ].join('')
    expect(text).toBe(
      'shared by all Services:\n  + table ip kube-proxy\n' +
        'Service ns/a:\n  ~ element a\n  - element b\nService ns/b:\n  - element c\n',
    )
  })
})

describe('syncText', () => {
  const options = { color: false, dryRun: false }
  const written = { commits: 1, changes: 3, bytes: 2_048, durationMs: 0.52 }
  const first = tableOf(1, { 'ns/a': '1', 'ns/b': '1' })
  const sync = (change: Partial<Sync>): Sync => ({
    reason: 'change',
    snapshot: EMPTY_SNAPSHOT,
    table: first,
    quarantined: [],
    previous: undefined,
    written,
    ...change,
  })

  it('names what changed, and what that took', () => {
    const table = { ...first, services: first.services.with(tableOf(2, { 'ns/b': '2' }).services.entries()) }
    expect(syncText(sync({ table, previous: first }), options)).toBe(
      'changed ns/b: 3 kernel objects, 2.0 KiB in 1 commit, 0.5 ms\n',
    )
  })

  it('says nothing when nothing changed', () => {
    const nothing = { commits: 0, changes: 0, bytes: 0, durationMs: 0 }
    expect(syncText(sync({ previous: first, written: nothing }), options)).toBe('')
  })

  it('sums up at the first sync', () => {
    expect(syncText(sync({}), options)).toMatch(/^programmed 2 Services, .*: 3 kernel objects/m)
    expect(syncText(sync({ quarantined: ['ns/b'] }), options)).toMatch(
      /^programmed 1 Service, .*\nrejected by the kernel: ns\/b; the log has the error\n$/m,
    )
    expect(syncText(sync({}), { ...options, dryRun: true })).toMatch(/^would program 2 Services/m)
  })

  it('says why a Service has nothing to program: refused is not headless', () => {
    const objects = [
      { name: 'typo', clusterIP: '10.0.0.300', ports: [{ port: 80 }] },
      { name: 'quoted', clusterIP: '10.0.0.3', ports: [{ port: '80' }] },
      { name: 'headless', clusterIP: 'None', ports: [{ port: 80 }] },
    ].map(({ name, ...spec }) =>
      parseObject({ apiVersion: 'v1', kind: 'Service', metadata: { name, namespace: 'ns' }, spec }),
    )
    const events = objects.filter(event => event !== undefined && 'kind' in event)
    const text = syncText(sync({ snapshot: applyEvents(EMPTY_SNAPSHOT, events) }), options)
    expect(text).toContain(
      'nothing to program for ns/headless (headless), ' +
        'ns/quoted (spec.ports[0].port "80" is a quoted string, and not a port), ' +
        'ns/typo (spec.clusterIP 10.0.0.300 is not an IP address)\n',
    )
  })

  it('names at most 200 Services', () => {
    const many = Object.fromEntries(Array.from({ length: 300 }, (_, i) => [`ns/s${i}`, '1']))
    expect(syncText(sync({ table: tableOf(1, many) }), options)).toContain(
      '... and 100 more Services; `kprobe dump`',
    )
  })
})
