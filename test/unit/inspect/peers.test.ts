import { beforeEach, describe, expect, it } from 'vitest'
import { buildInfo, buildText } from '../../../src/base/build-info.ts'
import { formatCidr, formatIp, type IpFilter, isSelected, parseIp } from '../../../src/base/ip.ts'
import { FlagReader, readArguments } from '../../../src/config/flag.ts'
import { networkNamespace } from '../../../src/daemon/instance-lock.ts'
import { snapshotJson } from '../../../src/daemon/saved/snapshot-json.ts'
import { FLOWS_FLAGS, readFlowsRequest, withPeers } from '../../../src/inspect/live/flow-request.ts'
import { readTraceRequest, TRACE_FLAGS } from '../../../src/inspect/live/trace.ts'
import { resolvePeers } from '../../../src/inspect/peers.ts'
import { endpoint, node, service, slice, snapshotOf } from '../model/objects.ts'
import { adminSocket } from './admin-socket.ts'

const SNAPSHOT = snapshotOf([
  service('web', { ports: [{ name: 'http', port: 80 }], clusterIPs: ['10.96.0.1', 'fd00::1'] }),
  service('headless', { clusterIP: 'None' }),
  node({ ips: ['192.168.1.7', 'fd01::7'] }),
  slice('web-4', 'web', [
    endpoint('10.1.0.9', { targetRef: { kind: 'Pod', name: 'web-a' } }),
    endpoint('10.1.0.10', { targetRef: { kind: 'Pod', name: 'lone' } }),
  ]),
  slice('web-6', 'web', [endpoint('fd02::9', { targetRef: { kind: 'Pod', name: 'web-a' } })], {
    addressType: 'IPv6',
  }),
])

let socket: string
let flags: Record<string, string>
/** Pages that were asked for. */
let pages: string[]
let isComplete: boolean

beforeEach(async () => {
  pages = []
  flags = { 'cluster-cidr': '10.1.0.0/16' }
  const config = { version: buildText(buildInfo()), network: await networkNamespace(), flags }
  const { number, events } = snapshotJson(SNAPSHOT)
  isComplete = true
  const objects = { number, events: [...events] }
  socket = await adminSocket(page => {
    pages.push(page)
    return JSON.stringify(page === '/config' ? config : { ...objects, complete: isComplete })
  })
})

async function traced(...argv: readonly string[]): Promise<string> {
  const reader = new FlagReader(readArguments([`--admin-socket=${socket}`, ...argv], TRACE_FLAGS))
  const request = readTraceRequest(reader)
  if (reader.errors.length > 0)
    return reader.errors.map(({ path, message }) => `${path}: ${message}`).join('; ')
  const { from, to } = await resolvePeers(request)
  const texts = [from[0], to?.addresses].map(filterText)
  return `${texts.join(' -> ')}${to?.port === undefined ? '' : ` ${to.port}`}`
}

function filterText(filter: IpFilter | undefined): string {
  if (filter === undefined) return 'all'
  return `${filter.isExcept ? 'not ' : ''}${[...filter.cidrs.map(formatCidr), ...[...filter.ips].map(formatIp)].join()}`
}

const CLUSTER = 'not 127.0.0.0/8,::1/128,fe80::/10,10.1.0.0/16,192.168.1.7,fd01::7,10.96.0.1,fd00::1,fd02::9'

describe('the peers of kprobe trace', () => {
  it.each([
    [['--from=10.1.0.9'], '10.1.0.9/32 -> all'],
    [['--from=10.1.0.0/16', '--to=10.96.0.1:80'], '10.1.0.0/16 -> 10.96.0.1/32 80'],
    [['--to=[fd00::1]:80'], 'all -> fd00::1/128 80'],
    [['--to=fd00::1'], 'all -> fd00::1/128'],
    [['--to=fd00::/64'], 'all -> fd00::/64'],
    [[], 'all -> all'],
  ])('%j needs no daemon', async (argv, expected) => {
    expect([await traced(...argv), pages]).toEqual([expected, []])
  })

  it.each([
    [
      ['--from=ns/web'],
      '--from: "ns/web" is a Service; a client is an address, a CIDR, pod/NAMESPACE/NAME, node/NAME or outside',
    ],
    [['--from=10.0.0.0/99'], '--from: "10.0.0.0/99" is '],
    [['--to=pod/ns/web/a'], '--to: "pod/ns/web/a" is neither an address nor the name of an object; give '],
    [['--to=10.96.0.1:99999'], '--to: "10.96.0.1:99999" has no port from 1 to 65535'],
    [['--to=ns/web:80/TCP'], '--to: "ns/web:80/TCP" has a protocol'],
    [['--from=10.1.0.9', '--to=fd00::1'], '--to: is IPv6 while --from is IPv4'],
  ])('%j is wrong usage', async (argv, message) => {
    expect(await traced(...argv)).toContain(message)
    expect(pages).toEqual([])
  })

  it('are not those of a daemon that has read a part of the objects', async () => {
    isComplete = false
    for (const from of ['outside', 'pod/ns/web-a'])
      await expect(traced(`--from=${from}`)).rejects.toThrow(`${socket} has not read all objects yet`)
  })

  it('cannot tell who is outside without the addresses of pods', async () => {
    delete flags['cluster-cidr']
    await expect(traced('--from=outside')).rejects.toThrow('without --cluster-cidr the daemon')
  })
})

it('the clients and the destination of kprobe flows are named alike', async () => {
  const argv = [
    `--admin-socket=${socket}`,
    '--from=10.9.0.0/16,pod/ns/web-a,192.0.2.1,outside',
    '--to=ns/web:http',
  ]
  const reader = new FlagReader(readArguments(argv, FLOWS_FLAGS))
  const { filter } = await withPeers(readFlowsRequest(reader))
  expect([reader.errors, filter.from.map(filterText)]).toEqual([
    [],
    ['10.9.0.0/16', '10.1.0.9/32,fd02::9/128', '192.0.2.1/32', CLUSTER],
  ])
  expect([filterText(filter.to?.addresses), filter.to?.port]).toEqual(['10.96.0.1/32,fd00::1/128', 80])
  const isFrom = (text: string) => filter.from.some(each => isSelected(each, parseIp(text) ?? ''))
  expect(['10.1.7.7', '10.96.0.1', '198.51.100.1', '192.0.2.1'].map(isFrom)).toEqual([
    false,
    false,
    true,
    true,
  ])
  const wrong = new FlagReader(readArguments(['--from=10.9.0.0/16,ns/web'], FLOWS_FLAGS))
  readFlowsRequest(wrong)
  expect(wrong.errors[0]?.path).toBe('--from[1]')
})
