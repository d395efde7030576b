import { execFileSync } from 'node:child_process'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { type ConntrackClient, createConntrackClient } from '../../src/kernel/conntrack/client.ts'
import type { Flow, FlowFilter } from '../../src/kernel/conntrack/flow.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import type { Transport } from '../../src/netlink/transport.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { eventually } from '../support/patience.ts'
import { entry, entryText, flowText, inject, socket } from '../unit/kernel/conntrack/flows.ts'

const openTransport = (): Transport => openNetlink({ protocol: NETLINK_NETFILTER })

let client: ConntrackClient
let injector: Transport

beforeEach(() => {
  freshNetns()
  client = createConntrackClient({ openTransport, clock: systemClock })
  injector = openTransport()
})

afterEach(async () => {
  await client.close()
  await injector.close()
})

const DNS = entry('10.1.0.5:4000', '10.96.0.10:53', '10.200.0.1:1053')
const DNS_METRICS = entry('10.1.0.5:4001', '10.96.0.10:9153', '10.200.0.1:9153')
const OTHER = entry('10.1.0.5:4002', '10.96.0.11:53', '10.200.0.2:53')
const TCP = entry('10.1.0.5:4003', '10.96.0.10:53', '10.200.0.1:1053', { protocol: 'TCP' })
const V6 = entry('[fd00:10::5]:4000', '[fd00:96::10]:53', '[fd00:10::1]:1053')

async function dumped(filter: FlowFilter): Promise<Flow[]> {
  const found: Flow[] = []
  const whole = await client.dump(filter, { isWanted: () => true, visit: each => found.push(each) })
  expect(whole).toBe(true)
  return found
}

async function texts(filter: FlowFilter): Promise<string[]> {
  return (await dumped(filter)).map(flowText).sort()
}

/** The kernel's own answer to a filter, before anything is compared here. */
async function listedByKernel(filter: FlowFilter): Promise<number> {
  const { family, protocol, ...destination } = filter
  let count = 0
  const listed = createConntrackClient({ openTransport: countingMessages(() => count++), clock: systemClock })
  await listed.dump({ family, protocol, ...destination }, { isWanted: () => false, visit: () => undefined })
  await listed.close()
  return count
}

/** Counts IPCTNL_MSG_CT_NEW in what arrives. */
function countingMessages(count: () => void): () => Transport {
  return () => {
    const inner = openTransport()
    return {
      portId: inner.portId,
      sendLimitBytes: inner.sendLimitBytes,
      sendSync: datagram => inner.sendSync(datagram),
      send: datagram => inner.send(datagram),
      receive(into) {
        const length = inner.receive(into)
        const view = new DataView(into.buffer)
        for (let at = 0; at + 16 <= (length ?? 0); at += (view.getUint32(at, true) + 3) & ~3)
          if (view.getUint16(at + 4, true) === 0x100) count()
        return length
      },
      watch: readable => inner.watch(readable),
      join: group => inner.join(group),
      leave: group => inner.leave(group),
      close: () => inner.close(),
    }
  }
}

it('lists by family, protocol, address and port', async () => {
  expect(inject(injector, [DNS, DNS_METRICS, OTHER, TCP, V6])).toBe(5)
  const udp = { family: 'IPv4', protocol: 'UDP' } as const
  const { ip } = socket('10.96.0.10:53')
  expect(await texts(udp)).toEqual([DNS, DNS_METRICS, OTHER].map(entryText).sort())
  expect(await texts({ ...udp, destination: ip })).toEqual([DNS, DNS_METRICS].map(entryText).sort())
  expect(await texts({ ...udp, destination: ip, destinationPort: 53 })).toEqual([entryText(DNS)])
  expect(await texts({ ...udp, destinationPort: 53 })).toEqual([DNS, OTHER].map(entryText).sort())
  expect(await texts({ family: 'IPv4', protocol: 'TCP' })).toEqual([entryText(TCP)])
  const v6 = { family: 'IPv6', protocol: 'UDP', destination: socket('[fd00:96::10]:53').ip } as const
  expect(await texts(v6)).toEqual([entryText(V6)])
})

it('lets the kernel compare: only what passes the filter comes to user space', async () => {
  inject(injector, [DNS, DNS_METRICS, OTHER, TCP, V6])
  const udp = { family: 'IPv4', protocol: 'UDP' } as const
  const { ip } = socket('10.96.0.10:53')
  expect(await listedByKernel(udp)).toBe(3)
  expect(await listedByKernel({ ...udp, destination: ip })).toBe(2)
  expect(await listedByKernel({ ...udp, destination: ip, destinationPort: 53 })).toBe(1)
  expect(await listedByKernel({ ...udp, destinationPort: 53 })).toBe(2)
  expect(await listedByKernel({ family: 'IPv4', protocol: 'TCP' })).toBe(1)
})

it('lists only attempts that were translated and have no answer, and has the kernel compare', async () => {
  const tcp = { protocol: 'TCP' } as const
  const [to, by] = ['10.96.0.10:80', '10.200.0.1:8080']
  const attempt = entry('10.1.0.5:4004', to, by, { ...tcp, isHalfOpen: true })
  const untranslated = entry('10.1.0.5:4005', to, to, { ...tcp, isHalfOpen: true })
  expect(inject(injector, [DNS, TCP, attempt, untranslated, entry('10.1.0.5:4006', to, by, tcp)])).toBe(5)
  const filter = { family: 'IPv4', ...tcp, isHalfOpen: true } as const
  expect(await texts({ family: 'IPv4', ...tcp })).toHaveLength(4)
  expect((await dumped(filter)).map(each => [flowText(each), each.isAnswered])).toEqual([
    [entryText(attempt), false],
  ])
  expect(await listedByKernel(filter)).toBe(1)
  expect(await listedByKernel({ ...filter, destinationPort: 81 })).toBe(0)
})

it('deletes what it is given and nothing else', async () => {
  inject(injector, [DNS, DNS_METRICS, OTHER, TCP, V6])
  const found = await dumped({ family: 'IPv4', protocol: 'UDP', destination: socket('10.96.0.10:53').ip })
  expect(await client.delete(found)).toEqual({ deleted: 2, gone: 0 })
  expect(await client.statistics()).toMatchObject({ entries: 3 })
  expect(await texts({ family: 'IPv4', protocol: 'UDP' })).toEqual([entryText(OTHER)])
  expect(await client.delete(await dumped({ family: 'IPv6', protocol: 'UDP' }))).toMatchObject({ deleted: 1 })
})

it('finds an entry gone without complaint, and never deletes the one that came after it', async () => {
  inject(injector, [DNS])
  const [found] = await dumped({ family: 'IPv4', protocol: 'UDP' })
  if (found === undefined) throw new Error('no flow')
  const reborn = { ...found, id: (found.id ^ 1) >>> 0 }
  expect(await client.delete([reborn])).toEqual({ deleted: 0, gone: 1 })
  expect(await client.delete([found, found])).toEqual({ deleted: 1, gone: 1 })
  expect(await client.delete([found])).toEqual({ deleted: 0, gone: 1 })
})

it('deletes in the zone that the entry is of', async () => {
  const zoned = entry('10.1.0.5:4000', '10.96.0.10:53', '10.200.0.1:1053', { zone: 9 })
  expect(inject(injector, [DNS, zoned])).toBe(2)
  const found = await dumped({ family: 'IPv4', protocol: 'UDP' })
  const inZone = found.filter(({ zone }) => zone === 9)
  expect(await client.delete(inZone)).toEqual({ deleted: 1, gone: 0 })
  expect((await dumped({ family: 'IPv4', protocol: 'UDP' })).map(({ zone }) => zone)).toEqual([undefined])
})

it("tells what conntrack's own tool tells", async () => {
  inject(injector, [DNS, V6])
  const listed = execFileSync('conntrack', ['-L', '-p', 'udp'], { encoding: 'utf8', stdio: 'pipe' })
  expect(listed).toContain('src=10.1.0.5 dst=10.96.0.10 sport=4000 dport=53')
  expect(listed).toContain('src=10.200.0.1 dst=10.1.0.5 sport=1053 dport=4000')
  const { entriesMax } = await client.statistics()
  const max = execFileSync('sysctl', ['-n', 'net.netfilter.nf_conntrack_max'], { encoding: 'utf8' })
  expect(entriesMax).toBe(Number(max))
})

it('F77 lists and deletes while flows come and go by thousands a second', async () => {
  const churner = openTransport()
  const stays = Array.from({ length: 30_000 }, (_, n) =>
    entry(`10.1.${n >> 8}.${n & 255}:4000`, '10.96.0.10:53'),
  )
  const stale = Array.from({ length: 2_000 }, (_, n) =>
    entry(`10.2.${n >> 8}.${n & 255}:4000`, '10.96.0.11:53'),
  )
  expect(inject(injector, [...stays, ...stale])).toBe(32_000)
  const come = Array.from({ length: 250 }, (_, n) => entry(`10.3.0.${n}:4000`, '10.96.0.12:53'))
  const churning = new AbortController()
  let rounds = 0
  const churn = (async () => {
    const other = createConntrackClient({ openTransport, clock: systemClock })
    const filter = { family: 'IPv4', protocol: 'UDP', destination: socket('10.96.0.12:53').ip } as const
    while (!churning.signal.aborted) {
      inject(churner, come)
      const found: Flow[] = []
      await other.dump(filter, { isWanted: () => true, visit: each => found.push(each) })
      await other.delete(found)
      rounds++
    }
    await other.close()
  })()
  let deleted = 0
  for (let pass = 0; pass < 4; pass++) {
    const found: Flow[] = []
    const visitor = { isWanted: () => true, visit: (each: Flow) => found.push(each) }
    expect(await client.dump({ family: 'IPv4', protocol: 'UDP' }, visitor)).toBe(true)
    const old = found.filter(({ destination }) => destination === socket('10.96.0.11:53').ip)
    deleted += (await client.delete([...old, ...old])).deleted
    if (pass < 3) inject(injector, stale)
  }
  await eventually(() => rounds > 10)
  churning.abort()
  await churn
  await churner.close()
  expect(deleted).toBe(8_000)
})
