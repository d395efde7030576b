import { describe, expect, it } from 'vitest'
import { serviceJson } from '../../../../src/daemon/saved/snapshot-json.ts'
import { planCounts, planSummary } from '../../../../src/inspect/check/plan.ts'
import { command, disagreements, verifyText } from '../../../../src/inspect/check/verify.ts'
import type { PlanLine } from '../../../../src/reconcile/dataplane.ts'
import { FakeIo } from '../../../support/fake-io.ts'
import { endpoint, service, slice, tableOf } from '../../model/objects.ts'

const table = tableOf([service('web'), slice('web-1', 'web', [endpoint('10.0.0.1')])])
const web = table.services.get('ns/web')
const same = new Map<string, unknown>([['ns/web', web === undefined ? {} : serviceJson(web)]])
const line: PlanLine = { verb: 'add', object: 'element ip kube-proxy frontends', service: 'ns/web' }

describe('disagreements', () => {
  it('names the Service whose kernel objects differ, and shared rules first', () => {
    const shared = { ...line, service: undefined }
    expect(disagreements(table, same, [line, shared, line])).toEqual([
      { service: '', daemon: undefined, kernel: [shared] },
      { service: 'ns/web', daemon: undefined, kernel: [line, line] },
    ])
  })

  it.each<[string, readonly unknown[]]>([
    ['the daemon has 10.0.0.9:8080', [endpoint('10.0.0.9')]],
    ['the daemon has ClusterIP 10.96.0.1:80 reject', []],
  ])('names the first difference of what the daemon computed: %s', (difference, endpoints) => {
    const other = tableOf([service('web'), slice('web-1', 'web', endpoints)]).services.get('ns/web')
    const computed = new Map<string, unknown>([['ns/web', other === undefined ? {} : serviceJson(other)]])
    expect(disagreements(table, computed, [])).toMatchObject([{ service: 'ns/web', kernel: [] }])
    expect(disagreements(table, computed, [])[0]?.daemon).toContain(difference)
  })

  it('names what the daemon does not know, or knows alone', () => {
    expect(disagreements(table, new Map([['ns/gone', {}]]), [])).toEqual([
      { service: 'ns/gone', daemon: 'only the daemon knows the Service', kernel: [] },
      { service: 'ns/web', daemon: 'the daemon does not know the Service', kernel: [] },
    ])
  })
})

describe('verifyText', () => {
  const differing = { service: 'ns/web', daemon: 'the daemon lacks 10.0.0.1:8080', kernel: [] }
  const facts = { services: 3, source: true, daemon: true, differences: [] }

  it('says in one line that all agree, and what was compared', () => {
    expect(verifyText(facts, false)).toBe('source, daemon and kernel agree; 3 Services compared\n')
    expect(verifyText({ ...facts, daemon: false }, false)).toBe(
      'source and kernel (daemon not queried) agree; 3 Services compared\n',
    )
    expect(verifyText({ ...facts, services: 1, source: false }, false)).toBe(
      'daemon (source not read) and kernel agree; 1 Service compared\n',
    )
  })

  it('names a family that the kernel lacks before the verdict', () => {
    const leftOut = { family: 'IPv6', reason: 'ip6 fib lookup: CONFIG_NFT_FIB_IPV6' } as const
    expect(verifyText({ ...facts, leftOut }, false)).toBe(
      'IPv6 Services are not served: this kernel cannot program IPv6 (ip6 fib lookup: CONFIG_NFT_FIB_IPV6)\n' +
        'source, daemon and kernel agree; 3 Services compared\n',
    )
  })

  it('names the first difference, and does not count shared rules as a Service', () => {
    const shared = { service: '', daemon: undefined, kernel: [line, line] }
    expect(verifyText({ ...facts, differences: [shared, differing] }, false)).toBe(
      [
        'SERVICE    DAEMON    KERNEL      FIRST DIFFERENCE',
        '(shared)   same      2 changes   + element ip kube-proxy frontends',
        'ns/web     differs   same        the daemon lacks 10.0.0.1:8080',
        'source, daemon and kernel differ: shared rules and 1 of 3 Services; run `kprobe plan` for details',
        '',
      ].join('\n'),
    )
  })

  it('names 20 Services, and how many more there are', () => {
    const differences = Array.from({ length: 159 }, (_, index) => ({
      ...differing,
      service: `ns/web-${index}`,
    }))
    const lines = verifyText({ ...facts, services: 200, differences }, false).split('\n')
    expect(lines).toHaveLength(1 + 20 + 2 + 1)
    expect(lines[21]).toBe('and 139 more Services; -o json lists all')
    expect(lines[22]).toBe('source, daemon and kernel differ: 159 of 200 Services')
  })
})

describe('kprobe verify', () => {
  it('reads the file that --config names, and its help has every flag that it heeds', async () => {
    const io = new FakeIo()
    expect(await command.run(['--config=/nonexistent/config.yaml'], io)).toBe(2)
    expect(io.stderr).toContain('--config /nonexistent/config.yaml: cannot be read (ENOENT)')
    for (const flag of ['--config', '--admin-socket', '--connection-metrics-max'])
      expect(command.help()({ all: true })).toContain(flag)
  })
})

describe('kprobe plan', () => {
  const of = (service?: string): PlanLine => ({ verb: 'add', object: 'element', service })

  it('counts Services, and names what belongs to none', () => {
    expect(planSummary([])).toBe('no difference: the kernel holds the wanted state')
    expect(planSummary([of('ns/a'), of('ns/a'), of('ns/b')])).toBe('3 changes for 2 Services')
    expect(planSummary([of(), of()])).toBe('2 changes for shared rules')
    expect(planSummary([of(), of('ns/a')])).toBe('2 changes for 1 Service and shared rules')
  })

  it('counts changes by verb for --summary', () => {
    const lines = [of(), of('ns/a'), { ...of('ns/b'), verb: 'remove' as const }]
    expect(planCounts(lines)).toEqual({ services: 2, shared: true, added: 2, changed: 0, removed: 1 })
  })
})
