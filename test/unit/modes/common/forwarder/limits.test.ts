import { describe, expect, it } from 'vitest'
import {
  beyondShares,
  DEFAULT_LIMITS,
  type Exhaustion,
  type Holder,
  limitsWithin,
  Usage,
} from '../../../../../src/modes/common/forwarder/context.ts'
import type { ProcessRoom } from '../../../../../src/modes/mode.ts'

const GIB = 2 ** 30

it.each<[room: ProcessRoom, listeners: number, connections: number, sessions: number]>([
  [{ descriptors: undefined, memoryBytes: undefined }, 8_192, 4_096, 4_096],
  [{ descriptors: 1 << 20, memoryBytes: 2 ** 64 }, 8_192, 4_096, 4_096],
  [{ descriptors: 20_480, memoryBytes: 2 * GIB }, 8_192, 4_096, 4_096],
  [{ descriptors: 1_200, memoryBytes: undefined }, 480, 240, 240],
  // Of deploy/kubernetes.
  [{ descriptors: 1 << 20, memoryBytes: GIB / 2 }, 8_192, 1_024, 4_096],
  [{ descriptors: 1_200, memoryBytes: 1 << 20 }, 480, 64, 240],
  [{ descriptors: 20, memoryBytes: 1 << 20 }, 8, 4, 4],
  [{ descriptors: 0, memoryBytes: undefined }, 0, 0, 0],
])('F140: stays within %j', (room, listeners, connections, sessions) => {
  expect(limitsWithin(room)).toEqual({ ...DEFAULT_LIMITS, listeners, connections, sessions })
})

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

/** Takes as much as it gets. */
function flood(usage: Usage, holder: Holder): number {
  while (usage.take(holder));
  return holder.held
}

function usageOf(limit: number) {
  const told: Exhaustion[] = []
  return { usage: new Usage('connections', limit, its => told.push(its)), told }
}

const port = (name: string): Holder => ({ name, held: 0 })

describe('Usage', () => {
  it('gives half of all to one Service port, and says so once until a tenth is free again', () => {
    const { usage, told } = usageOf(100)
    const web = port('shop/web:http')
    expect(flood(usage, web)).toBe(50)
    expect(flood(usage, web)).toBe(50)
    const exhaustion = { resource: 'connections', limit: 50, holder: 'shop/web:http' }
    expect(told).toEqual([exhaustion])
    for (let count = 0; count < 6; count++) usage.give(web)
    flood(usage, web)
    expect(told).toEqual([exhaustion, exhaustion])
    expect(usage.refused).toBe(3)
  })

  it('F140: the ports of one namespace together leave half to the others', () => {
    const { usage, told } = usageOf(1_000)
    const ports = Array.from({ length: 100 }, (_, index) => port(`greedy/s${index}:http`))
    for (const one of ports) for (let count = 0; count < 40; count++) usage.take(one)
    expect(usage.held).toBe(500)
    expect(told.map(({ holder }) => holder)).toEqual(['namespace greedy'])
    expect(flood(usage, port('small/web:http'))).toBe(250)
  })

  it('F140: however many namespaces take what they get, there is room for another one', () => {
    const { usage } = usageOf(1_000)
    for (let index = 0; index < 9; index++) flood(usage, port(`n${index}/web:http`))
    expect(usage.held).toBeLessThan(1_000)
    expect(usage.take(port('late/web:http'))).toBe(true)
  })

  it('counts nothing twice', () => {
    const { usage } = usageOf(10)
    const web = port('shop/web:http')
    flood(usage, web)
    for (let count = 0; count < 5; count++) usage.give(web)
    expect([usage.held, web.held]).toEqual([0, 0])
    expect(flood(usage, web)).toBe(5)
  })
})
