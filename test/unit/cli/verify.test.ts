import { describe, expect, it } from 'vitest'
import type { Io } from '../../../src/cli/io.ts'
import { command, disagreements, verifyText } from '../../../src/cli/verify.ts'
import { printedService } from '../../../src/model/printed.ts'
import type { PlanLine } from '../../../src/reconcile/dataplane.ts'
import { endpoint, service, slice, tableOf } from '../model/objects.ts'

const table = tableOf([service('web'), slice('web-1', 'web', [endpoint('10.0.0.1')])])
const web = table.services.get('ns/web')
const same = new Map([['ns/web', JSON.stringify(web === undefined ? {} : printedService(web))]])
const line: PlanLine = { verb: 'add', object: 'element ip kube-proxy frontends', service: 'ns/web' }

describe('disagreements', () => {
  it('is empty when source, daemon and kernel agree, and without a daemon', () => {
    expect(disagreements(table, same, [])).toEqual([])
    expect(disagreements(table, undefined, [])).toEqual([])
  })

  it('names the Service whose kernel objects differ, and what all share first', () => {
    const shared = { ...line, service: undefined }
    expect(disagreements(table, same, [line, shared, line])).toEqual([
      { service: '', daemon: false, kernel: [shared] },
      { service: 'ns/web', daemon: false, kernel: [line, line] },
    ])
  })

  it('names what the daemon computed otherwise, does not know, or knows alone', () => {
    expect(disagreements(table, new Map([['ns/web', '{}']]), [])).toEqual([
      { service: 'ns/web', daemon: true, kernel: [] },
    ])
    expect(disagreements(table, new Map([['ns/gone', '{}']]), []).map(each => each.service)).toEqual([
      'ns/gone',
      'ns/web',
    ])
  })
})

describe('verifyText', () => {
  const differing = { service: 'ns/web', daemon: true, kernel: [line] }

  it('says in one line that all agree, and whether a daemon was asked', () => {
    expect(verifyText({ services: 3, daemon: true, differences: [] }, false)).toBe(
      'source, daemon and kernel agree; 3 Services compared\n',
    )
    expect(verifyText({ services: 1, daemon: false, differences: [] }, false)).toBe(
      'source and kernel (no daemon answers) agree; 1 Service compared\n',
    )
  })

  it('does not count what all share as a Service', () => {
    const shared = { service: '', daemon: false, kernel: [line, line] }
    expect(verifyText({ services: 1, daemon: true, differences: [shared, differing] }, false)).toBe(
      [
        'SERVICE    DAEMON    KERNEL',
        '(shared)   same      2 changes',
        'ns/web     differs   1 change',
        'source, daemon and kernel do not agree on what all share and 1 Service; 1 Service compared',
        '',
      ].join('\n'),
    )
  })
})

describe('kprobe verify', () => {
  it('reads the file that --config names, and its help has every flag that it heeds', async () => {
    const said: string[] = []
    const io: Io = {
      out: () => undefined,
      err: text => said.push(text),
      outBacklogBytes: () => 0,
      outLost: new AbortController().signal,
      colour: false,
      signal: new AbortController().signal,
      hostName: 'node',
      processId: 1,
    }
    expect(await command.run(['--config=/nonexistent/config.yaml'], io)).toBe(2)
    expect(said.join('')).toContain('--config /nonexistent/config.yaml: cannot be read (ENOENT)')
    for (const flag of ['--config', '--admin-socket', '--connection-metrics-max'])
      expect(command.help()({ all: true })).toContain(flag)
  })
})
