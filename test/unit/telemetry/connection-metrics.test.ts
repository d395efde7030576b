import { describe, expect, it } from 'vitest'
import { ConnectionTotals, type TrafficCount } from '../../../src/telemetry/connection-metrics.ts'
import { createMetrics } from '../../support/metrics.ts'

const PORT = 'ns/web:http/TCP/IPv4'

function count(element: string, connections: number, endpoint = `10.1.0.${element}:80`, port = PORT) {
  return { element, port, endpoint, connections: BigInt(connections) }
}

describe('ConnectionTotals', () => {
  it('goes on when an element is made anew, for the same endpoint or another', () => {
    const totals = new ConnectionTotals()
    totals.take([count('1', 5)])
    totals.take([count('1', 2)])
    expect(totals.ports.get(PORT)?.connections).toBe(7)
    totals.take([count('1', 9, '10.1.0.7:80')])
    expect(totals.ports.get(PORT)?.connections).toBe(16)
  })

  it('does not count twice what one look has missed', () => {
    const totals = new ConnectionTotals()
    totals.take([count('1', 5), count('2', 1)])
    totals.take([count('2', 1)])
    totals.take([count('1', 6), count('2', 1)])
    expect(totals.ports.get(PORT)?.connections).toBe(7)
  })

  it('forgets what is gone', () => {
    const totals = new ConnectionTotals()
    totals.take([count('1', 5)])
    totals.take([])
    totals.take([])
    expect(totals.series).toEqual({ ports: 0, all: 0 })
  })
})

function bench(seriesMax: number) {
  let now = 0
  let looks = 0
  let counts: readonly TrafficCount[] = []
  const errors: string[] = []
  const read = () => {
    looks++
    return counts.length === 0 ? Promise.reject(new Error('EBUSY')) : Promise.resolve(counts)
  }
  const metrics = createMetrics({
    connections: { seriesMax, read, nowMs: () => now, failed: ({ message }) => errors.push(message) },
  })
  const lines = async (pattern: RegExp) =>
    (await metrics.text()).split('\n').filter(line => pattern.test(line))
  const series = () => lines(/^kprobe_(service|endpoint)_connections_total|^kprobe_connection_series /)
  const later = (next: readonly TrafficCount[]) => {
    counts = next
    now += 5_000
  }
  return { lines, series, later, errors, looks: () => looks }
}

describe('addConnectionMetrics', () => {
  it('has a series for each port and each endpoint', async () => {
    const { series, later } = bench(10)
    later([count('1', 5), count('2', 1)])
    expect((await series()).sort()).toEqual([
      'kprobe_connection_series 3',
      'kprobe_endpoint_connections_total{namespace="ns",service="web",service_key="ns/web",port="http",protocol="TCP",ip_family="IPv4",endpoint="10.1.0.1:80"} 5',
      'kprobe_endpoint_connections_total{namespace="ns",service="web",service_key="ns/web",port="http",protocol="TCP",ip_family="IPv4",endpoint="10.1.0.2:80"} 1',
      'kprobe_service_connections_total{namespace="ns",service="web",service_key="ns/web",port="http",protocol="TCP",ip_family="IPv4"} 6',
    ])
  })

  it('counts a connection once in each of two scrapes at the same time', async () => {
    const { series, later } = bench(10)
    later([count('1', 5)])
    const [one = [], two] = await Promise.all([series(), series()])
    expect(one[0]).toMatch(/^kprobe_service_connections_total\{.*\} 5$/)
    expect(two).toEqual(one)
  })

  it('leaves out endpoints beyond the limit, and then Services, and says how many there would be', async () => {
    const { series, later } = bench(2)
    later([count('1', 5), count('2', 1)])
    expect((await series()).map(line => line.split('{')[0])).toEqual([
      'kprobe_service_connections_total',
      'kprobe_connection_series 3',
    ])
    const many = Array.from({ length: 3 }, (_, at) => count(`${at}`, 1, '10.1.0.1:80', `ns/s${at}:/TCP/IPv4`))
    later(many)
    await series()
    later(many)
    expect(await series()).toEqual(['kprobe_connection_series 6'])
  })

  it('reads the kernel every five seconds at most', async () => {
    const { series, later, looks } = bench(10)
    later([count('1', 5)])
    await series()
    expect(await series()).toHaveLength(3)
    expect(looks()).toBe(1)
    later([count('1', 6)])
    expect(await series()).toContain(
      'kprobe_service_connections_total{namespace="ns",service="web",service_key="ns/web",port="http",protocol="TCP",ip_family="IPv4"} 6',
    )
  })

  it('keeps its numbers when the kernel cannot be read', async () => {
    const { series, later, errors } = bench(10)
    later([count('1', 5)])
    await series()
    later([])
    expect(await series()).toHaveLength(3)
    expect(errors).toEqual(['EBUSY'])
  })
})

describe('packets and bytes', () => {
  const volume = (packets: number): NonNullable<TrafficCount['volume']> => ({
    packetsIn: BigInt(packets),
    packetsOut: BigInt(packets + 1),
    bytesIn: BigInt(packets * 100),
    bytesOut: BigInt(packets * 1_000),
  })

  it('are added over everything that leads to one endpoint, and never go back', () => {
    const totals = new ConnectionTotals()
    const look = (...packets: readonly number[]) =>
      totals.take(
        packets.map((each, at) => ({ ...count(`${at}`, each, '10.1.0.1:80'), volume: volume(each) })),
      )
    look(5, 2)
    expect([...totals.endpoints].map(({ traffic }) => traffic)).toEqual([
      { connections: 7, packetsIn: 7, packetsOut: 9, bytesIn: 700, bytesOut: 7_000 },
    ])
    // The first virtual server was made anew.
    look(1, 3)
    expect(totals.ports.get(PORT)).toEqual({
      connections: 9,
      packetsIn: 9,
      packetsOut: 12,
      bytesIn: 900,
      bytesOut: 9_000,
    })
    expect([...totals.endpoints].map(({ traffic }) => traffic.packetsIn)).toEqual([9])
    expect(totals.series).toEqual({ ports: 5, all: 10 })
  })

  it('have series of their own, by direction, within the same limit', async () => {
    const lines = async (seriesMax: number) => {
      const its = bench(seriesMax)
      its.later([{ ...count('1', 3), volume: volume(4) }])
      const found = await its.lines(/^kprobe_(service|endpoint)_(packets|bytes)_total/)
      return found.map(line => line.replace(/namespace=.*ip_family="IPv4",/, ''))
    }
    expect(await lines(10)).toEqual([
      'kprobe_service_packets_total{direction="in"} 4',
      'kprobe_service_packets_total{direction="out"} 5',
      'kprobe_endpoint_packets_total{endpoint="10.1.0.1:80",direction="in"} 4',
      'kprobe_endpoint_packets_total{endpoint="10.1.0.1:80",direction="out"} 5',
      'kprobe_service_bytes_total{direction="in"} 400',
      'kprobe_service_bytes_total{direction="out"} 4000',
      'kprobe_endpoint_bytes_total{endpoint="10.1.0.1:80",direction="in"} 400',
      'kprobe_endpoint_bytes_total{endpoint="10.1.0.1:80",direction="out"} 4000',
    ])
    expect((await lines(9)).every(line => line.startsWith('kprobe_service_'))).toBe(true)
    expect(await lines(4)).toEqual([])
  })
})
