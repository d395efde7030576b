import { describe, expect, it } from 'vitest'
import { type Exhaustion, type Holder, Usage } from '../../../../../src/modes/common/forwarder/context.ts'

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
