import { execFileSync } from 'node:child_process'
import { createSocket, type Socket } from 'node:dgram'
import { once } from 'node:events'
import { expect } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { formatIp, formatIpPort } from '../../src/base/ip.ts'
import { u16be, u32host } from '../../src/base/octets.ts'
import type { NftClient } from '../../src/kernel/nft/client.ts'
import { RTN_LOCAL } from '../../src/kernel/nft/constants.ts'
import { diffRulesets } from '../../src/kernel/nft/diff.ts'
import { listAllTables } from '../../src/kernel/nft/list.ts'
import type { Ruleset, Table } from '../../src/kernel/nft/state.ts'
import { Connection } from '../../src/netlink/connection.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { type Ownership, placeText } from '../../src/proof/evaluate/compiled.ts'
import {
  difference,
  everything,
  includes,
  point,
  prefix,
  type Region,
} from '../../src/proof/evaluate/region.ts'
import { newLog } from '../../src/proof/evaluate/sets.ts'
import { createTracer, type TracePacket } from '../../src/proof/evaluate/trace.ts'
import type { Box } from '../../src/proof/evaluate/values.ts'
import { Walker } from '../../src/proof/evaluate/walk.ts'
import { freshNetns } from './lab/netns.ts'
import { openClient } from './pipeline.ts'
import { anyDestination, OWN_ADDRESSES, PORTS, randomTable, TABLE } from './proof-rulesets.ts'
import { generator } from './walk.ts'

const EMPTY: Ruleset = { tables: [] }
const ANY = 0xff
const RTN_UNICAST = 1
const UDP = 17

type Random = (bound: number) => number

interface JudgeOptions {
  readonly rulesets: number
  /** For each ruleset. */
  readonly packets: number
  /** Of nf_tables by default. */
  readonly rules?: JudgedRules
}

/** Rules of a kind, and what is known of the packets that meet them. */
export interface JudgedRules {
  /** Puts random rules into the kernel, for UDP packets of this node at hook output. */
  put(random: Random, client: NftClient): Promise<void>
  readonly ownership: Ownership
}

interface Followed {
  readonly met: readonly string[]
  readonly end: 'pass' | 'drop' | 'reject'
  /** The rule that dropped it, if it is known. */
  readonly decidedBy: string | undefined
}

const NATIVE: JudgedRules = {
  ownership: { ownName: TABLE },
  async put(random, client) {
    const wanted: Ruleset = { tables: [randomTable(random)] }
    const { transaction } = diffRulesets(EMPTY, wanted, { lateSets: new Set() })
    expect(await client.commit(transaction)).toMatchObject({ outcome: 'committed' })
  },
}

/** Follows one packet by itself: the places of the rules that count it, and its end. */
function follow(tables: readonly Table[], packet: TracePacket): Followed {
  const localIps = new Set(OWN_ADDRESSES)
  const { steps, verdict } = createTracer({ tables }).trace(packet, { localIps, random: () => 0 })
  const met = steps.flatMap(({ chain, rule, text }) =>
    text.includes('counter') ? [`${chain}, rule ${rule}`] : [],
  )
  const last = steps.at(-1)
  return {
    met,
    end: verdict === 'drop' || verdict === 'reject' ? verdict : 'pass',
    decidedBy: last === undefined ? undefined : `${last.chain}, rule ${last.rule}`,
  }
}

/**
 * Sends random packets through random rules of the kernel, and compares which rules counted them with what the
 * evaluator says of each packet, and of a random class that holds the packet.
 */
export async function judgeEvaluator(
  seed: number,
  { rulesets, packets, rules = NATIVE }: JudgeOptions,
): Promise<void> {
  freshNetns()
  const ip = (...args: string[]) => execFileSync('ip', args)
  ip('link', 'set', 'lo', 'up')
  // Without answers of ARP or of a port that is not open: both would meet the rules, too.
  ip('link', 'add', 'out0', 'type', 'veth', 'peer', 'name', 'in0')
  ip('link', 'set', 'out0', 'arp', 'off')
  ip('link', 'set', 'in0', 'up')
  for (const address of OWN_ADDRESSES) ip('address', 'add', `${formatIp(address)}/32`, 'dev', 'out0')
  ip('link', 'set', 'out0', 'up')
  ip('route', 'add', 'default', 'dev', 'out0')
  const sockets = await Promise.all(
    OWN_ADDRESSES.map(async address => [address, await bound(formatIp(address))] as const),
  )
  const receivers = await Promise.all(
    OWN_ADDRESSES.flatMap(address => PORTS.map(port => bound(formatIp(address), port))),
  )
  const random = generator(seed)
  const client = openClient()
  const connection = new Connection({
    transport: openNetlink({ protocol: NETLINK_NETFILTER }),
    clock: systemClock,
  })
  try {
    for (let count = 0; count < rulesets; count++) {
      await rules.put(random, client)
      const { value } = await listAllTables({ connection, clock: systemClock, ipsets: undefined })
      const tables = value.flatMap((table): readonly Table[] =>
        table.family === 'inet' ? [] : [{ ...table, family: table.family }],
      )
      const some = Array.from({ length: packets }, () => randomPacket(random, sockets))
      // Each packet is the first of its connection.
      const sent = [...new Map(some.map(its => [JSON.stringify(its), its])).values()]
      for (const packet of sent) await send(sockets, packet)
      const expected = new Map<string, bigint>()
      for (const packet of sent) {
        const followed = follow(tables, packet)
        for (const key of followed.met) expected.set(key, (expected.get(key) ?? 0n) + 1n)
        expectClass(tables, packet, { ...followed, random, ownership: rules.ownership })
      }
      expect(await counted(client, tables), `ruleset ${count} (PROOF_SEED=${seed})`).toEqual(sorted(expected))
      execFileSync('nft', ['flush', 'ruleset'])
    }
  } finally {
    await connection.close()
    await client.close()
    for (const socket of [...receivers, ...sockets.map(([, its]) => its)]) socket.close()
  }
}

async function bound(address: string, port = 0): Promise<Socket> {
  const socket = createSocket('udp4')
  socket.bind(port, address)
  await once(socket, 'listening')
  return socket
}

type Senders = readonly (readonly [address: string, Socket])[]

function randomPacket(random: Random, sockets: Senders): TracePacket {
  const [source, socket] = sockets[random(sockets.length)] ?? []
  return {
    origin: 'process',
    protocol: UDP,
    source: source ?? '',
    sourcePort: socket?.address().port ?? 0,
    destination: anyDestination(random),
    destinationPort: PORTS[random(PORTS.length)] ?? 0,
  }
}

/** A dropped packet is an error of its own. */
function send(sockets: Senders, { source, destination, destinationPort }: TracePacket): Promise<void> {
  const socket = sockets.find(([address]) => address === source)?.[1]
  return new Promise(resolve => socket?.send('x', destinationPort, formatIp(destination), () => resolve()))
}

/** The evaluator gives one end to each packet of a class: that of the packet alone. */
function expectClass(
  tables: readonly Table[],
  packet: TracePacket,
  {
    end,
    decidedBy,
    random,
    ownership,
  }: Followed & { readonly random: Random } & Pick<JudgedRules, 'ownership'>,
): void {
  const box = boxAround(packet, random)
  const walker = new Walker(tables, { family: 'ip', ...ownership, log: newLog(), nodeIps: new Set() })
  const ends = walker.walk({ hook: 'output', box }).filter(({ machine }) => isIn(machine.box, packet))
  const what = formatIpPort(packet.destination, packet.destinationPort)
  expect(ends, what).toHaveLength(1)
  const [its] = ends
  expect(its?.end === 'endpoint' ? 'pass' : its?.end, what).toBe(end)
  if (end === 'drop' && its?.machine.decidedBy !== undefined)
    expect(placeText(its.machine.decidedBy), what).toBe(decidedBy)
}

function boxAround(packet: TracePacket, random: Random): Box {
  const around = (address: string): Region => [prefix(address, [0, 16, 24, 30, 32][random(5)] ?? 0)]
  const port = u16be(packet.destinationPort)
  const isLocal = OWN_ADDRESSES.includes(packet.destination)
  const local = point(u32host(RTN_LOCAL))
  return {
    source: around(packet.source),
    sourceType: random(2) === 0 ? local : everything(4),
    destination: around(packet.destination),
    destinationType: random(2) === 0 ? everything(4) : isLocal ? local : difference(everything(4), local),
    protocol: random(2) === 0 ? point(String.fromCharCode(UDP)) : everything(1),
    sourcePort: everything(2),
    destinationPort: random(2) === 0 ? point(port) : [{ from: '\0\0', to: String.fromCharCode(ANY, ANY) }],
    interface: point('\0'.repeat(16)),
  }
}

function isIn(
  box: Box,
  { source, sourcePort, destination, destinationPort, protocol }: TracePacket,
): boolean {
  return (
    includes(box.source, source) &&
    includes(box.sourceType, u32host(RTN_LOCAL)) &&
    includes(box.destination, destination) &&
    includes(box.destinationType, u32host(OWN_ADDRESSES.includes(destination) ? RTN_LOCAL : RTN_UNICAST)) &&
    includes(box.destinationPort, u16be(destinationPort)) &&
    includes(box.sourcePort, u16be(sourcePort)) &&
    includes(box.protocol, String.fromCharCode(protocol))
  )
}

async function counted(
  client: ReturnType<typeof openClient>,
  tables: readonly Table[],
): Promise<readonly string[]> {
  const counts = new Map<string, bigint>()
  for (const { family, name, chains } of tables)
    for (const chain of chains.keys()) {
      const rules = await client.ruleCounters({ family, table: name, chain })
      for (const [index, { packets }] of rules.entries())
        if (packets > 0n) counts.set(`${family} ${name} ${chain}, rule ${index + 1}`, packets)
    }
  return sorted(counts)
}

function sorted(counts: ReadonlyMap<string, bigint>): readonly string[] {
  return [...counts].map(([place, packets]) => `${place}: ${packets}`).sort()
}
