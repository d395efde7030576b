import { describe, expect, it } from 'vitest'
import { beyondShares } from '../../../../../src/modes/common/forwarder/context.ts'

const services = (namespace: string, count: number, each: number): [string, number][] =>
  Array.from({ length: count }, (_, at) => [`${namespace}/${at}`, each])

describe('beyondShares', () => {
  it('F140: one Service with 1,000 ports gives way to 30 others, wherever it stands', () => {
    const large: [string, number] = ['greedy/all', 1_000]
    const others = [...services('greedy', 15, 1), ...services('ns', 15, 1)]
    expect(beyondShares(new Map([large, ...others]), 1_024)).toEqual(['greedy/all'])
    expect(beyondShares(new Map([...others, large]), 1_024)).toEqual(['greedy/all'])
    expect(beyondShares(new Map([...others, large]), 1_030)).toEqual([])
  })

  it('F140: a namespace with many Services leaves half to another one', () => {
    const beyond = beyondShares(new Map([...services('greedy', 1_000, 1), ...services('ns', 60, 1)]), 100)
    expect(beyond.filter(service => service.startsWith('ns/'))).toHaveLength(10)
    expect(beyond.filter(service => service.startsWith('greedy/'))).toHaveLength(950)
  })

  it('F140: one namespace has everything where no other asks for it, and the first come first', () => {
    expect(beyondShares(new Map(services('ns', 12, 1)), 10)).toEqual(['ns/10', 'ns/11'])
  })

  it('F140: what a Service that gives way leaves is for others', () => {
    const wanted = new Map([...services('a', 100, 1), ...services('b', 1, 90)])
    expect(beyondShares(wanted, 150)).toEqual(['b/0'])
  })

  it('F140: the same Services give way again when those that gave way ask once more', () => {
    const wanted = new Map([...services('a', 20, 7), ...services('b', 3, 50), ...services('c', 1, 400)])
    const first = beyondShares(wanted, 250)
    const kept = [...wanted].filter(([service]) => !first.includes(service))
    for (const service of first)
      expect(beyondShares(new Map([...kept, [service, wanted.get(service) ?? 0]]), 250)).toEqual([service])
  })
})
