import { execFileSync, spawnSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { performance } from 'node:perf_hooks'
import { systemClock } from '../../src/base/clock.ts'
import { IpsetClient } from '../../src/kernel/ipset/client.ts'
import { capacityFor } from '../../src/kernel/ipset/grow.ts'
import {
  createText,
  entryText,
  type Ipset,
  type IpsetEntry,
  type IpsetOperation,
} from '../../src/kernel/ipset/state.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import type { Transport } from '../../src/netlink/transport.ts'
import { childResult, goal, median, print, quantile } from './report.ts'

const SIZES = [10_000, 100_000]
const RUNS = 7
const CHANGES = 2_000
const FASTER_THAN_THE_TOOL = 5
/** Whatever is shorter carries no entries. */
const SMALL_BYTES = 500

interface LoadResult {
  readonly coldMs: number
  readonly warmMs: number
  /** The same datagrams, sent again as they are. */
  readonly rawMs: number
  readonly readMs: number
  readonly deleteMs: number
  readonly changeUs: number
  readonly changeUs99: number
  readonly messages: number
}

const [mode, size] = process.argv.slice(2)
if (mode === 'load') await measure(Number(size))
else compare()

function setFor(count: number): Ipset {
  return { name: 'S', type: 'hash:ip,port', family: 'IPv4', ...capacityFor(count) }
}

function entriesOf(count: number): readonly IpsetEntry[] {
  return Array.from({ length: count }, (_, n) => ({
    ip: String.fromCharCode(10, n >> 16, (n >> 8) & 255, n & 255),
    protocol: 6,
    port: 1 + (n % 60_000),
  }))
}

/** A process of its own, so that the first load meets code that nobody has compiled. */
async function measure(count: number): Promise<void> {
  const transport = openNetlink({ protocol: NETLINK_NETFILTER })
  const client = new IpsetClient({ transport, clock: systemClock })
  const set = setFor(count)
  const entries = entriesOf(count)
  const load: IpsetOperation[] = [
    { verb: 'create', set },
    { verb: 'add-entries', set, entries, groups: [] },
  ]
  const times: number[] = []
  let messages = 0
  for (let run = 0; run < RUNS; run++) {
    const start = performance.now()
    messages = await committed(client, load)
    times.push(performance.now() - start)
    if (run < RUNS - 1) await committed(client, [{ verb: 'destroy', name: set.name }])
  }
  await committed(client, [{ verb: 'destroy', name: set.name }])
  const rawMs = await sentAgain(load)
  const readMs = await timed(() => client.list([set.name]))
  const changes = await changing(client, set)
  const deleteMs = await timed(() =>
    committed(client, [{ verb: 'delete-entries', set, entries, groups: [] }]),
  )
  await committed(client, [{ verb: 'destroy', name: set.name }])
  await client.close()
  const result: LoadResult = {
    coldMs: times[0] ?? 0,
    warmMs: median(times.slice(1)),
    rawMs,
    readMs,
    deleteMs,
    changeUs: median(changes),
    changeUs99: quantile(changes, 0.99),
    messages,
  }
  console.log(JSON.stringify(result))
}

/** Median time of sending what a load sends, without making it and without looking at the answers. */
async function sentAgain(load: readonly IpsetOperation[]): Promise<number> {
  const transport = openNetlink({ protocol: NETLINK_NETFILTER })
  const sent: Uint8Array[] = []
  const recording: Transport = {
    portId: transport.portId,
    sendLimitBytes: transport.sendLimitBytes,
    sendSync: datagram => {
      sent.push(datagram.slice())
      transport.sendSync(datagram)
    },
    send: async datagram => recording.sendSync(datagram),
    receive: into => transport.receive(into),
    watch: readable => transport.watch(readable),
    join: group => transport.join(group),
    leave: group => transport.leave(group),
    close: () => transport.close(),
  }
  const client = new IpsetClient({ transport: recording, clock: systemClock })
  await committed(client, load)
  const datagrams = sent.filter(({ length }) => length > SMALL_BYTES)
  const name = load[0]?.verb === 'create' ? load[0].set.name : ''
  const times: number[] = []
  for (let run = 0; run < RUNS; run++) {
    await committed(client, [{ verb: 'destroy', name }, ...load.slice(0, 1)])
    const start = performance.now()
    for (const datagram of datagrams) transport.sendSync(datagram)
    times.push(performance.now() - start)
  }
  await client.close()
  return median(times)
}

async function committed(client: IpsetClient, operations: readonly IpsetOperation[]): Promise<number> {
  const { failures, unknown, messages } = await client.commit(operations)
  const error = failures[0]?.error ?? unknown
  if (error !== undefined) throw error
  return messages
}

async function timed(run: () => Promise<unknown>): Promise<number> {
  const start = performance.now()
  await run()
  return performance.now() - start
}

/** Microseconds of one entry more, and of one less, each by itself. */
async function changing(client: IpsetClient, set: Ipset): Promise<readonly number[]> {
  const times: number[] = []
  for (let i = 0; i < CHANGES; i++) {
    const verb = i % 2 === 0 ? 'add-entries' : 'delete-entries'
    const entry = { ip: '\xc0\0\x02\x01', protocol: 17, port: 53 }
    times.push((await timed(() => committed(client, [{ verb, set, entries: [entry], groups: [] }]))) * 1000)
  }
  return times
}

function compare(): void {
  const folder = mkdtempSync(join(tmpdir(), 'kprobe-bench-'))
  let isMissed = false
  try {
    const rows = SIZES.map(count => {
      const tool = toolMs(folder, count)
      const ours = Array.from({ length: 3 }, () => childResult<LoadResult>(['load', String(count)]))
      const pick = (key: keyof LoadResult): number => median(ours.map(result => result[key]))
      const ratio = tool / pick('warmMs')
      isMissed ||= ratio < FASTER_THAN_THE_TOOL
      return {
        entries: String(count),
        'ipset restore ms': tool.toFixed(1),
        'kprobe ms': pick('warmMs').toFixed(1),
        'raw sends ms': pick('rawMs').toFixed(1),
        'kprobe / raw': (pick('warmMs') / pick('rawMs')).toFixed(2),
        'cold ms': pick('coldMs').toFixed(1),
        'tool / kprobe': `${ratio.toFixed(1)} (goal ${FASTER_THAN_THE_TOOL}: ${ratio < FASTER_THAN_THE_TOOL ? 'MISSED' : 'met'})`,
        messages: `${pick('messages')} ${goal(pick('messages'), 1 + count / 400)}`,
        'list ms': pick('readMs').toFixed(1),
        'delete ms': pick('deleteMs').toFixed(1),
        'one change us': pick('changeUs').toFixed(1),
        'p99 us': pick('changeUs99').toFixed(1),
      }
    })
    print('hash:ip,port, filled from nothing; the tool with the same hashsize, its start included', rows)
  } finally {
    rmSync(folder, { recursive: true })
  }
  if (isMissed) throw new Error(`less than ${FASTER_THAN_THE_TOOL} times as fast as ipset restore`)
}

function toolMs(folder: string, count: number): number {
  const set = setFor(count)
  const file = join(folder, `${count}.save`)
  const lines = entriesOf(count).map(entry => `add ${set.name} ${entryText(set, entry)}`)
  writeFileSync(file, [createText({ set }), ...lines, ''].join('\n'))
  const times = Array.from({ length: RUNS }, () => {
    const start = performance.now()
    execFileSync('ipset', ['restore', '-f', file])
    const ms = performance.now() - start
    spawnSync('ipset', ['destroy', set.name])
    return ms
  })
  return median(times)
}
