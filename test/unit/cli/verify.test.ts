import { describe, expect, it } from 'vitest'
import { disagreements } from '../../../src/cli/verify.ts'
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
