import { formatIp } from '../../src/base/ip.ts'
import { errnoNumber } from '../../src/netlink/errors.ts'
import { SystemError, type Transport } from '../../src/netlink/transport.ts'
import { FakeIpsetKernel } from './fake-ipset/kernel.ts'
import { FakeIpvs, type FakeIpvsOptions } from './fake-ipvs/kernel.ts'
import type { FakeServer } from './fake-ipvs/objects.ts'
import { FakeKernel } from './fake-kernel/kernel.ts'
import { FakeLinks } from './fake-link/kernel.ts'
import { FaultyTransport, isBatch, messagesIn } from './faulty-transport.ts'

export const DEVICE = 'kube-ipvs0'

/** The four parts of a kernel that the IPVS mode writes to, in memory: one node, whatever processes come and go. */
export class IpvsNode {
  readonly nft: FakeKernel
  readonly sets = new FakeIpsetKernel()
  readonly ipvs: FakeIpvs
  readonly links = new FakeLinks()
  /** Messages that reached the kernel, questions included. */
  messages = 0
  /** Number of messages after which the process that sends them is dead. */
  diesAt = Number.POSITIVE_INFINITY
  afterMessage: (() => void) | undefined
  /** What the kernel answers a message with instead of looking at it. */
  readonly onSend: ((part: Part, datagram: Uint8Array) => void)[] = []

  constructor({ nowMs, ...ipvs }: { readonly nowMs: () => number } & FakeIpvsOptions) {
    this.nft = new FakeKernel({ nowMs })
    this.ipvs = new FakeIpvs(ipvs)
  }

  open(part: Part): Transport {
    const sockets = { nft: this.nft, ipset: this.sets, ipvs: this.ipvs, link: this.links } as const
    return new SteppedTransport(this, part, sockets[part].open())
  }

  /** Called before each message. */
  pass(part: Part, message: Uint8Array): void {
    if (this.messages >= this.diesAt) throw new SystemError('sendmsg', errnoNumber('EBADF'), 'EBADF')
    for (const hook of this.onSend) hook(part, message)
    this.messages++
    // Rules know sets by number.
    const { ipsets } = this.nft.space
    ipsets.clear()
    for (const [index, set] of this.sets.slots.entries()) if (set !== undefined) ipsets.set(index, set.name)
  }

  /** Everything but nf_tables, as text, sorted. */
  dump(): readonly string[] {
    const sets = this.sets.slots.flatMap(set =>
      set === undefined
        ? []
        : [`set ${set.name} ${set.type}`, ...[...set.elements.keys()].map(key => `entry ${set.name} ${key}`)],
    )
    const servers = [...this.ipvs.servers.values()].flatMap(server => {
      const name = `${PROTOCOLS[server.protocol]} ${addressOf(server)}:${server.port}`
      const destinations = [...server.destinations.values()].map(
        each => `real ${name} -> ${addressOf(each)}:${each.port} weight ${each.weight}`,
      )
      return [`virtual ${name} ${server.scheduler} ${server.flags} ${server.timeoutS}`, ...destinations]
    })
    const addresses = this.addresses().map(ip => `address ${formatIp(ip)}`)
    return [...sets, ...servers, ...addresses].sort()
  }

  addresses(): readonly string[] {
    return this.links.byName(DEVICE)?.addresses.map(({ ip }) => ip) ?? []
  }

  /**
   * What must hold at every instant, as complaints: no address without its server, no server without its sets, and no
   * redirect to what is not there.
   */
  complaints(isForeign: (text: string) => boolean = () => false): readonly string[] {
    const complaints: string[] = []
    const served = new Set<string>()
    for (const server of this.ipvs.servers.values()) {
      const ip = ipOf(server)
      served.add(ip)
      if (!isForeign(formatIp(ip)) && !this.#isRecorded(server, ip))
        complaints.push(`server ${formatIp(ip)}:${server.port} is in no set`)
    }
    for (const ip of this.addresses()) {
      if (isForeign(formatIp(ip))) continue
      if (!served.has(ip)) complaints.push(`address ${formatIp(ip)} has no server`)
      if (!this.#has('IPVS-IPS', ip, { ip })) complaints.push(`address ${formatIp(ip)} is in no set`)
    }
    return [...complaints, ...this.#blindRedirects()]
  }

  /** Elements that send packets on to a virtual server, or to an address, that is not there. */
  #blindRedirects(): readonly string[] {
    const servers = [...this.ipvs.servers.values()].map(server => `${ipOf(server)} ${server.port}`)
    const there = new Set(servers)
    const bound = new Set(this.addresses())
    return this.redirects().flatMap(({ ip, port }) => {
      const target = `${formatIp(ip)}:${port}`
      if (!there.has(`${ip} ${port}`)) return [`a redirect to ${target}, which is no server`]
      const isBound = bound.has(ip) || !this.#has('IPVS-IPS', ip, { ip })
      return isBound ? [] : [`a redirect to ${target}, which is not bound`]
    })
  }

  /** Where the elements of nf_tables send packets on to. */
  redirects(): readonly { readonly ip: string; readonly port: number }[] {
    const tables = [...this.nft.space.tables.values()]
    const sets = tables.flatMap(({ sets }) => REDIRECTS.map(name => sets.get(name)))
    return sets.flatMap(set =>
      [...(set?.elements.values() ?? [])].map(({ data }) => {
        const value = data?.value ?? ''
        const at = value.length - 4
        return { ip: value.slice(0, at), port: (value.charCodeAt(at) << 8) | value.charCodeAt(at + 1) }
      }),
    )
  }

  #isRecorded({ protocol, port }: FakeServer, ip: string): boolean {
    const byPort = protocol === 6 ? ['NODE-PORT-TCP'] : ['NODE-PORT-UDP']
    return (
      this.#has('IPVS-IPS', ip, { ip }) ||
      ['CLUSTER-IP', 'EXTERNAL-IP', 'EXTERNAL-IP-LOCAL', 'LOAD-BALANCER'].some(stem =>
        this.#has(stem, ip, { ip, protocol, port }),
      ) ||
      byPort.some(stem => this.#has(stem, ip, { port })) ||
      this.#has('NODE-PORT-SCTP-HASH', ip, { ip, protocol, port })
    )
  }

  #has(stem: string, ip: string, wanted: { ip?: string; protocol?: number; port?: number }): boolean {
    const set = this.sets.set(`${ip.length === 4 ? 'KUBE-' : 'KUBE-6-'}${stem}`)
    return [...(set?.elements.values() ?? [])].some(
      element =>
        element.ip === wanted.ip && element.protocol === wanted.protocol && element.port === wanted.port,
    )
  }
}

export type Part = 'nft' | 'ipset' | 'ipvs' | 'link'

const REDIRECTS = ['cluster-lists', 'local-lists'] as const
const PROTOCOLS: Readonly<Record<number, string>> = { 6: 'TCP', 17: 'UDP', 132: 'SCTP' }

export function ipOf({ family, address }: { readonly family: number; readonly address: string }): string {
  return family === 2 ? address.slice(0, 4) : address
}

function addressOf(of: { readonly family: number; readonly address: string }): string {
  return formatIp(ipOf(of))
}

/** Hands a datagram over message by message, so that a test can look in between; a batch is one. */
class SteppedTransport extends FaultyTransport {
  readonly #node: IpvsNode
  readonly #part: Part

  constructor(node: IpvsNode, part: Part, inner: Transport) {
    super(inner)
    this.#node = node
    this.#part = part
  }

  override sendSync(datagram: Uint8Array): void {
    const parts = isBatch(datagram)
      ? [datagram]
      : messagesIn(datagram).map(({ start, end }) => datagram.subarray(start, end))
    for (const part of parts) {
      this.#node.pass(this.#part, part)
      super.sendSync(part)
      this.#node.afterMessage?.()
    }
  }

  override async send(datagram: Uint8Array): Promise<void> {
    await new Promise(resolve => setImmediate(resolve))
    this.sendSync(datagram)
  }
}
