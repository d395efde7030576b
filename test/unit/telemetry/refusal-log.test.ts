import { beforeEach, describe, expect, it } from 'vitest'
import { RefusalLog, SourceRefusalLog } from '../../../src/telemetry/refusal-log.ts'
import { service, tableOf } from '../model/objects.ts'

let log: RefusalLog

beforeEach(() => {
  log = new RefusalLog()
})

const refusing = (name: string, ...ips: readonly string[]) => service(name, { externalIPs: ips })
const shown = (news: ReturnType<RefusalLog['update']>) =>
  news.fresh.map(each => `${each.service}: ${each.refusals.map(({ value }) => value).join(' ')}`)

describe('RefusalLog', () => {
  it('names what is refused for the first time, by Service, and how much there is', () => {
    const first = log.update(tableOf([refusing('a', '127.0.0.1', '127.0.0.2')]))
    expect([shown(first), first.unnamed, first.total]).toEqual([['ns/a: 127.0.0.1 127.0.0.2'], 0, 2])
    const second = log.update(tableOf([refusing('a', '127.0.0.1', '127.0.0.3')]))
    expect([shown(second), second.total]).toEqual([['ns/a: 127.0.0.3'], 2])
    expect(log.update(tableOf([service('a')]))).toEqual({ fresh: [], unnamed: 0, total: 0 })
  })

  it('knows since when each refusal is there, and which were there at the start', () => {
    let now = 1_000
    const timed = new RefusalLog(() => now)
    const since = () => [...timed.since()].map(its => `${its.value} ${its.wallMs} ${its.orEarlier}`)
    timed.update(tableOf([refusing('a', '127.0.0.1')]))
    expect(since()).toEqual(['127.0.0.1 1000 true'])
    now = 2_000
    timed.update(tableOf([refusing('a', '127.0.0.1', '127.0.0.2')]))
    expect(since().sort()).toEqual(['127.0.0.1 1000 true', '127.0.0.2 2000 false'])
    now = 3_000
    timed.update(tableOf([service('a')]))
    expect(since()).toEqual([])
    timed.update(tableOf([refusing('a', '127.0.0.1')]))
    expect(since()).toEqual(['127.0.0.1 3000 false'])
    expect([...log.since()]).toEqual([])
  })

  it('keeps the times of 10,000 refusals at most, and of others once there is room', () => {
    const timed = new RefusalLog(() => 5)
    const many = (from: number, length: number) =>
      Array.from({ length }, (_, n) => {
        const [high, low] = [(from + n) >> 8, (from + n) & 255]
        const bad = Array.from({ length: 10 }, (_, at) => `127.${high}.${low}.${at}`)
        return service(`a${from + n}`, { clusterIP: `10.97.${high}.${low}`, externalIPs: bad })
      })
    timed.update(tableOf(many(0, 1_002)))
    expect([...timed.since()]).toHaveLength(10_000)
    timed.update(tableOf(many(0, 1)))
    timed.update(tableOf(many(0, 2)))
    expect([...timed.since()]).toHaveLength(20)
  })

  it('counts what one bad rollout would flood the log with', () => {
    const many = Array.from({ length: 150 }, (_, n) => refusing(`a${n}`, '127.0.0.1'))
    const news = log.update(
      tableOf(many.map((each, n) => ({ ...each, spec: { ...spec(each), clusterIP: `10.96.1.${n}` } }))),
    )
    expect([news.fresh.length, news.unnamed, news.total]).toEqual([100, 50, 150])
  })
})

describe('SourceRefusalLog', () => {
  const refused = (name: string) => ({
    location: 'services',
    refusal: { object: `Service ns/${name}`, field: 'spec', value: '', reason: 'no use' },
  })

  it('names each object once while it is refused, although all are reported at each change', () => {
    const objects = new SourceRefusalLog()
    expect(objects.update([refused('a')])).toEqual({ fresh: [refused('a')], unnamed: 0, total: 1 })
    expect(objects.update([refused('a'), refused('b')])).toEqual({
      fresh: [refused('b')],
      unnamed: 0,
      total: 2,
    })
    expect(objects.update([])).toEqual({ fresh: [], unnamed: 0, total: 0 })
    expect(objects.update([refused('a')]).fresh).toEqual([refused('a')])
  })
})

function spec({ spec }: ReturnType<typeof service>): object {
  return typeof spec === 'object' && spec !== null ? spec : {}
}
