import { describe, expect, it } from 'vitest'
import { identityOf, isRefusal } from '../../../src/model/fields.ts'
import { parseService } from '../../../src/model/parse-service.ts'
import type { Service } from '../../../src/model/service.ts'
import { printedService } from '../../support/printed.ts'
import { endpoint, refusalLines, service, slice, tableOf } from './objects.ts'

const ANNOTATION = 'kprobe.io/ipvs-scheduler'

function annotated(value: unknown) {
  return service('web', {}, { metadata: { annotations: { [ANNOTATION]: value } } })
}

function parsed(value: unknown): Service {
  const read = parseService(identityOf('Service', annotated(value)))
  if (isRefusal(read)) throw new Error(JSON.stringify(read))
  return read
}

describe('the annotation kprobe.io/ipvs-scheduler', () => {
  it.each(['rr', 'wrr', 'mh', 'a_b-2', 'x'.repeat(15)])('%j is read as it is', value => {
    expect(parsed(value)).toMatchObject({ ipvsScheduler: value, refusals: [] })
  })

  it.each(['', 'RR', 'r r', 'rr\n', 'x'.repeat(16), 'ü', 1, null, {}, ['rr']])(
    '%j is refused once, and the Service keeps the usual one',
    value => {
      const read = parsed(value)
      expect(read.ipvsScheduler).toBeUndefined()
      expect(refusalLines(read)).toEqual([
        expect.stringMatching(/metadata\.annotations\[kprobe\.io\/ipvs-scheduler\] = .*not the name/),
      ])
    },
  )

  it('need not be there', () => {
    for (const metadata of [{}, { annotations: null }, { annotations: { other: 'rr' } }]) {
      expect(parseService(identityOf('Service', service('web', {}, { metadata })))).toMatchObject({
        ipvsScheduler: undefined,
      })
    }
  })

  it('goes with every port, and into what is printed', () => {
    const objects = [annotated('wrr'), slice('web-1', 'web', [endpoint('10.1.0.1')])]
    const found = tableOf(objects).services.get('ns/web')
    if (found === undefined) throw new Error('not resolved')
    expect(found.ports.map(({ scheduler }) => scheduler)).toEqual(['wrr'])
    expect(printedService(found).ports).toMatchObject([{ scheduler: 'wrr' }])
  })

  it('is absent from a port without it, and from what is printed', () => {
    const found = tableOf([service('web')]).services.get('ns/web')
    if (found === undefined) throw new Error('not resolved')
    expect(found.ports[0]?.scheduler).toBeUndefined()
    expect(printedService(found).ports[0]).not.toHaveProperty('scheduler')
  })
})
