import { beforeEach, describe, expect, it } from 'vitest'
import { secondsText } from '../../../../src/base/duration.ts'
import { formatIpPort, parseIp } from '../../../../src/base/ip.ts'
import { runCommand } from '../../../../src/commands.ts'
import {
  type FlowFilter,
  FlowGroups,
  type Grouping,
  namedFlow,
} from '../../../../src/inspect/live/flow-groups.ts'
import { flowColumns, flowJson, flowLine, groupColumns } from '../../../../src/inspect/live/flow-lines.ts'
import { FlowWatch, readFlowSettings } from '../../../../src/inspect/live/flow-reading.ts'
import { decodeRecord } from '../../../../src/kernel/conntrack/record.ts'
import { serviceOfFlow } from '../../../../src/modes/common/service-names.ts'
import { ByteWriter, viewOf } from '../../../../src/netlink/attribute.ts'
import { readMessages } from '../../../../src/netlink/message.ts'
import { SystemError } from '../../../../src/netlink/transport.ts'
import { FakeClock } from '../../../support/fake-clock.ts'
import { FakeIo } from '../../../support/fake-io.ts'
import { ScriptedTransport } from '../../../support/scripted-transport.ts'
import { appendNew, type Entry, entry } from '../../kernel/conntrack/flows.ts'
import { SHOP } from './rows.ts'

const EVERYTHING: FlowFilter = {
  service: '',
  from: [],
  to: undefined,
  endpoint: undefined,
  protocol: undefined,
  all: false,
}
const NODE_PORT = 30_080

const names: ConstructorParameters<typeof FlowGroups>[0]['names'] = {
  version: 1,
  serviceOf: (...destination) => serviceOfFlow(SHOP, ...destination),
  podAt: endpoint => (endpoint === '10.1.0.1:8080' ? 'shop/cart-a' : undefined),
}

function bytesOf(each: Entry): Uint8Array {
  const out = new ByteWriter(256)
  appendNew(out, each, 1)
  return out.written().slice()
}

function take(groups: FlowGroups, each: Entry, kind: 'new' | 'ended' = 'new'): void {
  const view = viewOf(bytesOf(each))
  for (const message of readMessages(view)) groups.take(kind, view, message)
}

const tcp = (from: string, to: string, answeredBy?: string) =>
  entry(from, to, answeredBy, { protocol: 'TCP' })
const cart = (client: number, endpoint: string) => tcp(`10.2.0.${client}:4000`, '10.96.0.1:80', endpoint)

function groupsOf(
  by: Grouping,
  more: {
    readonly filter?: Partial<FlowFilter>
    readonly groupsMax?: number
    readonly repliesOf?: 'new' | 'ended'
  } = {},
) {
  const { filter, ...options } = more
  return new FlowGroups({ names, filter: { ...EVERYTHING, ...filter }, by, withVolume: false, ...options })
}

const texts = (groups: FlowGroups) =>
  groups
    .largest()
    .map(({ service, endpoint, client, begun, ended }) =>
      [service, endpoint, client, begun, ended].filter(part => part !== undefined).join(' '),
    )

describe('FlowGroups', () => {
  it('counts by Service, endpoint and client, over both families', () => {
    const all = [
      cart(1, '10.1.0.1:8080'),
      cart(2, '10.1.0.1:8080'),
      cart(2, '10.1.0.2:8080'),
      tcp('[fd00::9]:4000', '[fd00::1]:80', '[fd00::2]:8080'),
      tcp('10.2.0.1:4000', '192.0.2.9:80'),
    ]
    const counted = (by: Grouping) => {
      const groups = groupsOf(by)
      for (const each of all) take(groups, each)
      return texts(groups)
    }
    expect(counted('service')).toEqual(['shop/cart:http 3 0', 'shop/cart6:http 1 0'])
    expect(counted('endpoint')).toEqual([
      'shop/cart:http 10.1.0.1:8080 2 0',
      'shop/cart:http 10.1.0.2:8080 1 0',
      'shop/cart6:http [fd00::2]:8080 1 0',
    ])
    expect(counted('client')).toEqual([
      'shop/cart:http 10.2.0.2 2 0',
      'shop/cart:http 10.2.0.1 1 0',
      'shop/cart6:http fd00::9 1 0',
    ])
  })

  it('counts a node port only where the destination was translated', () => {
    const groups = groupsOf('endpoint', { filter: { all: true } })
    take(groups, tcp('10.2.0.1:4000', `192.168.0.2:${NODE_PORT}`, '10.1.0.1:8080'))
    take(groups, tcp('10.2.0.1:4000', `203.0.113.7:${NODE_PORT}`))
    expect(texts(groups)).toEqual(['shop/cart:http 10.1.0.1:8080 1 0', '1 0'])
  })

  it('counts connections beyond its bound together, new pairs and known ones', () => {
    const groups = groupsOf('endpoint', { groupsMax: 1 })
    take(groups, cart(1, '10.1.0.1:8080'))
    for (let n = 0; n < 3; n++) take(groups, cart(n, '10.1.0.2:8080'))
    expect(texts(groups)).toEqual(['shop/cart:http 10.1.0.1:8080 1 0'])
    expect(groups.others).toEqual({ begun: 3, ended: 0 })
    take(groups, cart(1, '10.1.0.2:8080'), 'ended')
    expect(groups.others).toEqual({ begun: 3, ended: 1 })
  })

  it('counts the entries without a reply, of those that it is given', () => {
    const silent = entry('10.2.0.9:4000', '10.96.0.1:80', '10.1.0.1:8080', {
      protocol: 'TCP',
      isHalfOpen: true,
      isDnat: false,
    })
    const counted = (repliesOf?: 'new' | 'ended') => {
      const groups = groupsOf('service', repliesOf === undefined ? {} : { repliesOf })
      for (const kind of ['new', 'ended'] as const)
        for (const each of [cart(1, '10.1.0.1:8080'), silent]) take(groups, each, kind)
      const columns = groupColumns(groups.largest(), 'service', 'events').map(([heading]) => heading)
      return [groups.largest()[0]?.unanswered, columns.includes('NO REPLY')]
    }
    expect(counted('new')).toEqual([1, true])
    expect(counted('ended')).toEqual([1, true])
    expect(counted()).toEqual([0, false])
  })

  it('starts again from zero', () => {
    const groups = groupsOf('endpoint')
    take(groups, cart(1, '10.1.0.1:8080'))
    groups.restart()
    expect(texts(groups)).toEqual([])
    take(groups, cart(1, '10.1.0.1:8080'), 'ended')
    expect(texts(groups)).toEqual(['shop/cart:http 10.1.0.1:8080 0 1'])
  })

  it('names a known pair again when the names changed', () => {
    let name = 'shop/cart:http'
    const changing = { version: 1, serviceOf: () => name, podAt: () => undefined }
    const groups = new FlowGroups({ names: changing, filter: EVERYTHING, by: 'service', withVolume: false })
    take(groups, cart(1, '10.1.0.1:8080'))
    name = 'shop/other:http'
    take(groups, cart(1, '10.1.0.1:8080'))
    changing.version++
    take(groups, cart(1, '10.1.0.1:8080'))
    expect(texts(groups)).toEqual(['shop/cart:http 2 0', 'shop/other:http 1 0'])
  })
})

describe('namedFlow', () => {
  const flow = (each: Entry, filter: Partial<FlowFilter> = {}) => {
    const view = viewOf(bytesOf(each))
    const [message] = readMessages(view)
    const record = message === undefined ? undefined : decodeRecord(view, message)
    return record === undefined
      ? undefined
      : namedFlow(record, { names, filter: { ...EVERYTHING, ...filter } })
  }
  const ip = parseIp('10.1.0.1') ?? ''
  const to = (address: string, port: number | undefined) => ({
    addresses: { cidrs: [], ips: new Set([parseIp(address) ?? '']), isExcept: false },
    port,
  })

  it.each([
    ['the Service', { service: 'shop/cart' }, true],
    ['another Service', { service: 'shop/car' }, false],
    ['the endpoint', { endpoint: { ip, port: 8_080 } }, true],
    ['another port of it', { endpoint: { ip, port: 8_081 } }, false],
    ['another protocol', { protocol: 'UDP' }, false],
    ['the destination', { to: to('10.96.0.1', 80) }, true],
    ['another port of it', { to: to('10.96.0.1', 8_080) }, false],
    ['the endpoint as destination', { to: to('10.1.0.1', 8_080) }, true],
    ['any port of it', { to: to('10.1.0.1', undefined) }, true],
    ['the client as destination', { to: to('10.2.0.1', undefined) }, false],
  ] as const)('selects by %s', (_, filter, isSelected) => {
    expect(flow(cart(1, '10.1.0.1:8080'), filter) !== undefined).toBe(isSelected)
  })

  it('prints a line for people and one for scripts', () => {
    const found = flow(cart(1, '10.1.0.1:8080'))
    if (found === undefined) throw new Error('not found')
    const wallMs = Date.UTC(2026, 0, 2, 3, 4, 5, 678)
    const volume = { packetsSent: 3, packetsReceived: 2, bytesSent: 180, bytesReceived: 2_048 }
    const startNs = BigInt(wallMs - 350) * 1_000_000n
    const ended = { ...found, volume, startNs, stopNs: BigInt(wallMs) * 1_000_000n }
    expect(flowLine('ended', ended, wallMs)).toBe(
      '03:04:05.678Z ended TCP  10.2.0.1:4000 > shop/cart:http (10.96.0.1:80) > 10.1.0.1:8080 (pod shop/cart-a) sent 3 packets, 180 B; received 2, 2.0 KiB in 0.350s',
    )
    expect(flowJson('ended', ended, wallMs)).toMatchObject({
      time: '2026-01-02T03:04:05.678Z',
      event: 'ended',
      client: formatIpPort(found.client, 4_000),
      bytesReceived: 2_048,
      durationMs: 350,
    })
    const silent = { ...ended, isAnswered: false }
    expect(flowLine('ended', silent, wallMs)).toMatch(
      /10\.1\.0\.1:8080 \(pod shop\/cart-a\) sent .* no reply in 0\.350s$/,
    )
    expect(['new', 'open'].map(kind => flowJson(kind as 'new' | 'open', silent, wallMs))).toMatchObject([
      { isAnswered: undefined },
      { isAnswered: false },
    ])
    expect(
      [found, silent].map(each => flowColumns([each], wallMs).some(([heading]) => heading === 'REPLY')),
    ).toEqual([false, true])
    const hostile = { ...found, service: `shop/a\n${String.fromCharCode(27)}[2J` }
    expect(flowLine('new', hostile, wallMs)).toContain('shop/a\\u{a}\\u{1b}[2J')
  })

  it('writes times as people read them', () => {
    expect([350, 2_340, 12_400, 250_000, 7_260_000].map(secondsText)).toEqual([
      '0.350s',
      '2.3s',
      '12s',
      '4m10s',
      '2h1m',
    ])
  })
})

describe('FlowWatch', () => {
  function watchOf(dropped: () => number | undefined) {
    const clock = new FakeClock()
    const transport = new ScriptedTransport(() => [])
    const kinds: string[] = []
    const watch = new FlowWatch({
      clock,
      kinds: ['new'],
      take: kind => kinds.push(kind),
      open: () => transport,
      dropped,
    })
    return { clock, transport, kinds, watch }
  }
  const overrun = () => new SystemError('recvmsg', 105, 'ENOBUFS')

  it('rests between events instead of waking up for each, and watches again when none came', async () => {
    const { clock, transport, kinds, watch } = watchOf(() => 0)
    expect(transport.joined).toEqual(new Set([1]))
    transport.arrive(bytesOf(cart(1, '10.1.0.1:8080')))
    expect(kinds).toEqual(['new'])
    expect(transport.watched).toBe(false)
    transport.arriveUnseen(bytesOf(cart(2, '10.1.0.1:8080')))
    await clock.advance(10)
    expect(kinds).toHaveLength(2)
    await clock.advance(10)
    expect(transport.watched).toBe(true)
    transport.arriveUnseen(bytesOf(cart(3, '10.1.0.1:8080')))
    watch.stop()
    expect(kinds).toHaveLength(3)
    expect(transport.joined).toEqual(new Set())
  })

  it('F172: counts what the kernel dropped since the last time, or the gaps where it does not say', () => {
    let total: number | undefined = 40
    const { transport, watch, kinds } = watchOf(() => total)
    transport.arrive(overrun(), bytesOf(cart(1, '10.1.0.1:8080')))
    expect(kinds).toEqual(['new'])
    expect([watch.takeLost(), watch.takeLost()]).toEqual([40, 0])
    watch.stop()
    total = 45
    transport.arriveUnseen(overrun())
    watch.stop()
    expect(watch.takeLost()).toBe(5)
    total = undefined
    transport.arriveUnseen(overrun(), overrun())
    watch.stop()
    expect(watch.takeLost()).toBe(2)
  })

  it('reads what the kernel records', () => {
    const settings = (values: Readonly<Record<string, number>>) =>
      readFlowSettings(path => values[path.replace('/proc/sys/net/netfilter/nf_conntrack_', '')])
    expect(settings({ acct: 1, timestamp: 0, events: 0 })).toEqual({
      hasVolume: true,
      whyNoEvents:
        'the kernel reports no connections: net.netfilter.nf_conntrack_events is 0; set it to 1 or 2',
      notices: ['no times: net.netfilter.nf_conntrack_timestamp is 0'],
    })
    expect(settings({ acct: 1, timestamp: 1, events: 2 })).toMatchObject({
      whyNoEvents: undefined,
      notices: [],
    })
    expect(settings({})).toMatchObject({
      whyNoEvents: undefined,
      notices: [
        'no bytes and packets: net.netfilter.nf_conntrack_acct is not there',
        'no times: net.netfilter.nf_conntrack_timestamp is not there',
      ],
    })
    expect(settings({ acct: 0 }).whyNoEvents).toContain('built without CONFIG_NF_CONNTRACK_EVENTS')
  })
})

describe('the flags of kprobe flows and kprobe top', () => {
  let io: FakeIo
  beforeEach(() => {
    io = new FakeIo()
  })

  it.each([
    [
      'flows',
      ['--service=cart/'],
      '--service: "cart/" is not the name of a Service; give NAMESPACE/NAME, svc/NAMESPACE/NAME, NAME.NAMESPACE.svc, or NAME in the namespace of -n or default',
    ],
    ['flows', ['--from=nowhere'], '--from[0]: "nowhere" is'],
    ['flows', ['--from=10.1.0.9,10.2.0.0/16', '--to=fd00::1'], '--to: is IPv6 while --from is IPv4'],
    ['flows', ['--endpoint=10.1.0.1:0'], '--endpoint: "10.1.0.1:0" is neither ADDRESS nor ADDRESS:PORT'],
    ['flows', ['--group-by=pod'], '--group-by: "pod" is not one of service, endpoint, client'],
    ['flows', ['--duration=5s'], '--duration: is for --follow'],
    ['flows', ['--all', '--service=a/b'], '--all: contradicts --service'],
    ['flows', ['--follow', '--interval=1s'], '--interval: is for --group-by'],
    [
      'flows',
      ['--follow', '--group-by=service', '--interval=1ms'],
      '--interval: "1ms" is shorter than 200ms; 0: one table at the end',
    ],
    ['top', ['--interval=1ms'], '--interval: "1ms" is not a duration (10s, 2m) from 200ms to 596h'],
    ['top', ['-n', 'a/b'], '--namespace: "a/b" is not the name of a namespace'],
  ])('%s refuses %j', async (command, argv, message) => {
    expect(await runCommand([command, ...argv], io)).toBe(2)
    expect(io.stderr).toContain(`kprobe ${command}: ${message}`)
  })
})
