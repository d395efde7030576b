import { beforeEach, describe, expect, it } from 'vitest'
import type { PacketHead } from '../../../../src/base/ip-packet.ts'
import { refusedBetween } from '../../../../src/inspect/live/drops.ts'
import { PacketCollector, type TracedPacket } from '../../../../src/inspect/live/packet-collector.ts'
import { ServiceIndex, storyLines, storyOf } from '../../../../src/inspect/live/packet-story.ts'
import type { TraceEvent } from '../../../../src/kernel/nft/monitor.ts'
import { ip } from '../../../support/addresses.ts'

const HEAD: PacketHead = {
  protocol: 6,
  source: ip('192.0.2.1'),
  destination: ip('10.96.0.1'),
  ports: { source: 40_000, destination: 80 },
}
const TRACE = 'kprobe-trace-7'

let packets: TracedPacket[]
let nowMs: number
let collector: PacketCollector

beforeEach(() => {
  packets = []
  nowMs = 0
  collector = new PacketCollector({
    clock: { nowMs: () => nowMs },
    wallMs: () => 1_000,
    table: TRACE,
    onPacket: packet => packets.push(packet),
  })
})

function step(change: Partial<TraceEvent>): TraceEvent {
  return {
    id: 1,
    family: 'ip',
    table: 'filter',
    chain: 'FORWARD',
    type: 'rule',
    handle: 5n,
    verdict: { code: -1, chain: undefined },
    head: undefined,
    inputInterface: 2,
    outputInterface: undefined,
    ...change,
  }
}

const start = (change: Partial<TraceEvent> = {}) =>
  step({ table: TRACE, chain: 'start', head: HEAD, ...change })
const sent = (change: Partial<TraceEvent> = {}) =>
  step({ table: TRACE, chain: 'sent', type: 'policy', handle: undefined, outputInterface: 3, ...change })
const drop = { verdict: { code: 0, chain: undefined } } as const

describe('PacketCollector', () => {
  it('ignores packets that another program traces', () => {
    collector.take(step({ head: HEAD }))
    collector.take(step(drop))
    collector.take(step({ table: 'kprobe-trace-8', chain: 'start', head: HEAD }))
    collector.sweep({ now: true })
    expect(packets).toEqual([])
  })

  it('takes the rules of other traces for no steps', () => {
    collector.take(start())
    collector.take(step({ table: 'kprobe-trace-8', chain: 'start' }))
    collector.take(sent())
    expect(packets).toMatchObject([{ end: 'sent', steps: [], outputInterface: 3 }])
  })

  it('takes a second start with the same number for another packet', () => {
    collector.take(start())
    collector.take(start())
    collector.take(step(drop))
    expect(packets.map(({ end }) => end)).toEqual(['vanished', 'dropped'])
  })

  it('gives up a packet of which nothing is heard, and knows a queue', () => {
    collector.take(start())
    collector.take(start({ id: 2 }))
    collector.take(step({ id: 2, verdict: { code: 0x10003, chain: undefined } }))
    nowMs = 999
    collector.sweep()
    expect(packets).toEqual([])
    nowMs = 1_000
    collector.sweep()
    expect(packets.map(({ end }) => end)).toEqual(['vanished', 'queued'])
  })

  it('marks packets that were open when messages were lost', () => {
    collector.take(start())
    collector.lost()
    collector.take(start({ id: 2 }))
    collector.sweep({ now: true })
    expect(packets.map(({ isTorn }) => isTorn)).toEqual([true, false])
  })

  it('keeps a bounded number of packets and steps', () => {
    for (let id = 0; id < 5_000; id++) collector.take(start({ id }))
    expect(collector.openPackets).toBe(4_096)
    for (let count = 0; count < 1_000; count++) collector.take(step({ id: 4_999 }))
    collector.take(step({ id: 4_999, ...drop }))
    expect(packets.at(-1)?.steps).toHaveLength(256)
  })
})

describe('storyOf', () => {
  const row = { service: 'shop/web:http', type: 'ClusterIP', protocol: 'TCP', frontend: '10.96.0.1:80' }
  const services = new ServiceIndex(
    [
      { ...row, action: 'balance', endpoints: [] },
      {
        ...row,
        service: 'shop/node:http',
        type: 'NodePort',
        frontend: '*:30080',
        action: 'balance',
        endpoints: [],
      },
    ],
    new Set([ip('192.0.2.10')]),
  )

  it('names a node port at addresses of the node alone', () => {
    const ports = { source: 1, destination: 30_080 }
    expect(services.at(HEAD)?.service).toBe('shop/web:http')
    expect(services.at({ ...HEAD, ports, destination: ip('192.0.2.10') })?.service).toBe('shop/node:http')
    expect(services.at({ ...HEAD, ports, destination: ip('192.0.2.11') })).toBeUndefined()
  })

  function storySentAs(last: PacketHead, { first = HEAD, isLookedUp = true } = {}) {
    collector.take(start({ head: first }))
    collector.take(sent({ head: last }))
    const [packet = expect.fail('no packet')] = packets
    return storyOf(packet, {
      steps: [],
      row: services.at(packet.first),
      tracked: isLookedUp ? 'none' : undefined,
      interfaceName: index => `eth${index}`,
      pods: () => undefined,
    })
  }

  it('says nothing about the entry of a packet that was not looked up', () => {
    const ping = { ...HEAD, protocol: 1, ports: undefined }
    const story = storySentAs(ping, { first: ping, isLookedUp: false })
    expect(storyLines(story)).toEqual([
      '1970-01-01T00:00:01Z ICMP 192.0.2.1 -> 10.96.0.1 from eth2: passes unchanged by eth3',
    ])
    expect(story.hasNoEntry).toBeUndefined()
  })

  it('does not call a packet unchanged whose source was replaced', () => {
    const story = storySentAs({ ...HEAD, source: ip('10.0.0.1') })
    expect(story.outcome.answer).toBe('leaves by eth3, source replaced by 10.0.0.1:40000')
  })

  it('says where a packet went and which source it has there', () => {
    const story = storySentAs({ ...HEAD, source: ip('10.0.0.1'), destination: ip('10.1.0.5') })
    expect(storyLines(story)).toEqual([
      '1970-01-01T00:00:01Z TCP 192.0.2.1:40000 -> 10.96.0.1:80 shop/web:http (ClusterIP) from eth2: ' +
        'goes to 10.1.0.5:80 by eth3, source replaced by 10.0.0.1:40000',
      '  conntrack: no entry',
    ])
  })
})

it('kprobe drops says so when the counters went back, instead of a wrong number', () => {
  const before = new Map([['ip kube-proxy refuse 4', 9n]])
  expect(refusedBetween(before, new Map([['ip kube-proxy refuse 4', 12n]]))).toBe(3n)
  expect(refusedBetween(before, new Map([['ip kube-proxy refuse 4', 2n]]))).toBeUndefined()
  expect(refusedBetween(before, new Map([['ip kube-proxy refuse 7', 40n]]))).toBeUndefined()
})
