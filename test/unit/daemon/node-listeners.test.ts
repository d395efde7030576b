import { beforeEach, describe, expect, it } from 'vitest'
import { formatIpPort } from '../../../src/base/ip.ts'
import type { Occasion } from '../../../src/daemon/intake.ts'
import { NodeListeners } from '../../../src/daemon/node-listeners.ts'
import { applyEvents, EMPTY_SNAPSHOT, type Snapshot } from '../../../src/model/snapshot.ts'
import { ip } from '../../support/addresses.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import {
  attribute,
  datagram,
  doneMessage,
  errorMessage,
  message,
  ScriptedTransport,
  sequenceOf,
  typeOf,
  u16,
  u32,
} from '../../support/scripted-transport.ts'
import { eventsOf, node, service } from '../model/objects.ts'

const BRIDGE = '172.17.0.1'
const OTHER_USER = 1000

/** A socket of TCP. */
interface Socket {
  readonly bound: string
  readonly port: number
  readonly uid?: number
}

interface Address {
  readonly ip: string
  readonly bits: number
  readonly secondary?: boolean
}

/** What the kernel would list. */
let addresses: Address[]
let sockets: Socket[]
let listeners: NodeListeners
let snapshot: Snapshot
let warnings: string[]
let clock: FakeClock
/** So many lookups fail from now on; the kernel says that sockets changed while it listed them. */
let torn: number
let failures: number
/** Inodes of kprobe's own sockets; each one that is listed has INODE. */
let own: ReadonlySet<number>
const INODE = 9

function familyOf(address: string): number {
  return address.length === 4 ? 2 : 10
}

function addressMessage({ ip: text, bits, secondary }: Address, sequence: number): string {
  const bytes = ip(text)
  const head = String.fromCharCode(familyOf(bytes), bits, secondary === true ? 1 : 0, 0) + u32(3)
  const payload = head + attribute(bytes.length === 4 ? 2 : 1, bytes)
  return message({ type: 20, flags: 2, sequence, payload })
}

function socketMessage({ bound, port, uid = 0 }: Socket, sequence: number): string {
  const bytes = ip(bound)
  const id = `${String.fromCharCode(port >> 8, port & 255)}${u16(0)}${bytes.padEnd(32, '\0')}${u32(0)}${u32(0)}${u32(0)}`
  const payload = `${String.fromCharCode(familyOf(bytes), 10, 0, 0)}${id}${u32(0).repeat(3)}${u32(uid)}${u32(INODE)}`
  return message({ type: 20, flags: 2, sequence, payload })
}

function answered(sent: Uint8Array): readonly Uint8Array[] {
  const sequence = sequenceOf(sent)
  if (typeOf(sent) === 18) return [datagram(errorMessage(sequence, 19))]
  const [family, protocol] = sent.subarray(16)
  const found =
    typeOf(sent) === 22
      ? addresses.map(each => addressMessage(each, sequence))
      : sockets
          .filter(({ bound }) => protocol === 6 && familyOf(ip(bound)) === family)
          .map(each => socketMessage(each, sequence))
  // NLM_F_DUMP_INTR.
  const isTorn = typeOf(sent) === 20 && torn > 0 && torn-- > 0
  return [
    datagram(
      ...found,
      isTorn ? message({ type: 3, flags: 0x12, sequence, payload: u32(0) }) : doneMessage(sequence),
    ),
  ]
}

beforeEach(() => {
  addresses = [{ ip: BRIDGE, bits: 16 }]
  sockets = []
  warnings = []
  clock = new FakeClock()
  snapshot = EMPTY_SNAPSHOT
  torn = 0
  failures = 0
  own = new Set()
  const open = () => new ScriptedTransport(answered)
  listeners = new NodeListeners({
    clock,
    warn: (_, text) => warnings.push(text),
    failed: () => failures++,
    retry: () => take('resync'),
    sockets: { diag: open, route: open },
    ownSockets: () => own,
  })
})

/** Passes on what has changed, and gives the ports of a Service that are refused. */
function take(occasion: Occasion, ...objects: readonly unknown[]): readonly string[] {
  snapshot = listeners.completed(applyEvents(snapshot, eventsOf(objects)), occasion)
  const taken = snapshot.listeners.get('ns/web')?.taken ?? []
  return taken.map(its => formatIpPort(its.ip, its.port))
}

function web(ports: readonly number[], externalIPs: readonly string[] = [BRIDGE]): unknown {
  // A Service has external addresses of its families only.
  const clusterIP = externalIPs[0]?.includes(':') ? 'fd00:10::1' : '10.96.0.1'
  return service('web', { clusterIP, externalIPs, ports: ports.map(port => ({ name: `p${port}`, port })) })
}

it("F134: no Service is refused for kprobe's own sockets", () => {
  sockets = [{ bound: BRIDGE, port: 80 }]
  own = new Set([INODE])
  expect(take('start', web([80]))).toEqual([])
})

describe('F134: a Service keeps what it has', () => {
  it.each(['0.0.0.0', BRIDGE, '::'])('from a process that begins to listen at %s', bound => {
    take('start')
    expect(take('change', web([80]))).toEqual([])
    sockets = [80, 81].map(port => ({ bound, port }))
    expect(take('resync')).toEqual([])
    // The Service changes, and asks for another port.
    expect(take('change', web([80, 81]))).toEqual([`${BRIDGE}:81`])
    sockets = []
    expect(take('resync')).toEqual([])
  })

  it('is asked about what it claims anew, and whatever was refused at each full resync only', () => {
    sockets = [{ bound: BRIDGE, port: 80 }]
    expect(take('change', web([80]))).toEqual([`${BRIDGE}:80`])
    expect(take('resync')).toEqual([`${BRIDGE}:80`])
    sockets = []
    expect(take('change')).toEqual([`${BRIDGE}:80`])
    expect(take('resync')).toEqual([])
    // It goes and comes back: it has nothing any more.
    sockets = [{ bound: BRIDGE, port: 80 }]
    take('change', { ...Object(web([80])), spec: { type: 'ExternalName', externalName: 'x' } })
    expect(take('change', web([80]))).toEqual([`${BRIDGE}:80`])
  })

  it('from processes without rights, though kprobe restarts', () => {
    sockets = [80, 81].map(port => ({ bound: BRIDGE, port, uid: OTHER_USER }))
    expect(take('start', web([80]))).toEqual([])
    expect(take('resync')).toEqual([])
    expect(take('change', web([80, 81]))).toEqual([`${BRIDGE}:81`])
  })

  it('and is refused at the start what a process of root has', () => {
    sockets = [{ bound: '0.0.0.0', port: 80 }]
    expect(take('start', web([80]))).toEqual([`${BRIDGE}:80`])
  })
})

it('F134: as many ports of a Service are looked up as it has', () => {
  const ports = Array.from({ length: 1_100 }, (_, index) => index + 1)
  sockets = [{ bound: BRIDGE, port: 1_100 }]
  expect(take('change', web(ports))).toEqual([`${BRIDGE}:1100`])
})

describe('F134: a process that listens at all addresses', () => {
  const VIP = '2001:db8::50'
  const wildcard = [{ bound: '::', port: 443 }]

  it.each<readonly [string, readonly Address[], readonly string[]]>([
    [VIP, [VIP, '2001:db8::10'].map(ip => ({ ip, bits: 64 })), []],
    ['2001:db8::10', [VIP, '2001:db8::10'].map(ip => ({ ip, bits: 64 })), ['[2001:db8::10]:443']],
    [VIP, [{ ip: VIP, bits: 64 }], [`[${VIP}]:443`]],
    ['192.0.2.50', [{ ip: '192.0.2.50', bits: 24, secondary: true }], []],
    ['192.0.2.50', [{ ip: '192.0.2.50', bits: 24 }], ['192.0.2.50:443']],
  ])('is in the way of %s at an interface with %j: %j', (address, at, wanted) => {
    addresses = [...at]
    sockets = wildcard
    expect(take('change', web([443], [address]))).toEqual(wanted)
  })

  it.each([
    ['2001:db8::10', VIP, 64],
    ['192.0.2.10', '192.0.2.50', 24],
  ])(
    'leaves alone what is no address of the Node, %s, but of its prefix: %s/%i, whichever was first',
    (own, vip, bits) => {
      const known = node({ ips: [own] })
      sockets = wildcard
      // As promote_secondaries leaves it, before and after the Node's address comes back.
      addresses = [{ ip: vip, bits }]
      expect(take('change', known, web([443], [vip]))).toEqual([])
      addresses = [
        { ip: own, bits, secondary: bits === 24 },
        { ip: vip, bits },
      ]
      expect(take('change', web([443], [vip]))).toEqual([])
    },
  )
})

describe('F134: sockets that cannot be listed', () => {
  it('are listed three times, at once', () => {
    sockets = [{ bound: BRIDGE, port: 80 }]
    torn = 2
    expect(take('change', web([80]))).toEqual([`${BRIDGE}:80`])
    expect([failures, warnings]).toEqual([0, []])
  })

  it('are listed again each second, for what no lookup has answered', async () => {
    take('change', web([80]))
    sockets = [80, 81].map(port => ({ bound: BRIDGE, port }))
    torn = 6
    expect(take('change', web([80, 81]))).toEqual([])
    expect([failures, clock.pending]).toEqual([1, 1])
    await clock.advance(1_000)
    expect([failures, clock.pending]).toEqual([2, 1])
    await clock.advance(1_000)
    expect(take('change')).toEqual([`${BRIDGE}:81`])
    expect([failures, clock.pending]).toEqual([2, 0])
    expect(warnings).toEqual([expect.stringContaining('are not checked against')])
  })

  it('count as unknown since the start until they are listed', async () => {
    sockets = [{ bound: BRIDGE, port: 80, uid: OTHER_USER }]
    torn = 3
    expect(take('start', web([80]))).toEqual([])
    await clock.advance(1_000)
    expect([failures, take('resync')]).toEqual([1, []])
  })

  it('forget a Service that goes meanwhile', async () => {
    take('change', web([80]))
    sockets = [{ bound: BRIDGE, port: 80 }]
    torn = 9
    take('change', web([80], [BRIDGE, '192.0.2.1']))
    snapshot = { ...snapshot, services: EMPTY_SNAPSHOT.services }
    take('change')
    take('change', web([80]))
    torn = 0
    await clock.advance(1_000)
    expect(take('change')).toEqual([`${BRIDGE}:80`])
  })
})
