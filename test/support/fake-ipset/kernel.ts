import { INDEX, TYPE } from '../../../src/kernel/ipset/state.ts'
import { viewOf } from '../../../src/netlink/attribute.ts'
import { NLM_F_DUMP, NLM_F_EXCL, NLMSG_HDRLEN } from '../../../src/netlink/constants.ts'
import { errnoNumber } from '../../../src/netlink/errors.ts'
import { readMessages } from '../../../src/netlink/message.ts'
import { Refusal } from '../fake-kernel/objects.ts'
import { errorReply } from '../fake-kernel/replies.ts'
import { answerEach, FakeSocket, type SocketKernel, type SocketOptions } from '../fake-kernel/socket.ts'
import { ipsetMessage, listMessages, refusedEntry } from './replies.ts'
import { FakeRequest } from './request.ts'
import { addOrDelete, ERR, type FakeIpset, type FakeType, refuse, TYPES } from './sets.ts'

export interface FakeIpsetOptions {
  /** What the kernel has of each type; a type that is not there it lacks. */
  readonly types?: Readonly<Record<string, FakeType>>
  /** Without CAP_NET_ADMIN: one EPERM a datagram. */
  readonly isPrivileged?: boolean
  /** As older kernels do: destroying what is not there is refused (ENOENT). */
  readonly destroyIsStrict?: boolean
}

/**
 * The ipsets of one network namespace, in memory, spoken to in bytes. What it refuses and how is what Linux 6.18 was
 * seen to do; test/contract holds it against that.
 */
export class FakeIpsetKernel implements SocketKernel {
  /** By index; a name keeps its index when sets are swapped. */
  readonly slots: (FakeIpset | undefined)[] = []
  readonly #options: FakeIpsetOptions
  readonly #types: Readonly<Record<string, FakeType>>
  #ports = 2000
  #made = 0
  /** Of hashes. */
  readonly families = new Set([2, 10])
  /** Messages that were carried out, or refused, so far: by command. */
  readonly handled: number[] = []
  datagrams = 0

  constructor(options: FakeIpsetOptions = {}) {
    this.#options = options
    this.#types = options.types ?? TYPES
  }

  /** A socket of NETLINK_NETFILTER with NETLINK_CAP_ACK and NETLINK_EXT_ACK. */
  open(options: SocketOptions = {}): FakeSocket {
    return new FakeSocket(this, ++this.#ports, options)
  }

  set(name: string): FakeIpset | undefined {
    return this.slots.find(set => set?.name === name)
  }

  /** A rule refers to the set, as to an index. */
  refer(name: string): void {
    const set = this.set(name)
    if (set === undefined) throw new Error(`no set ${name} to refer to`)
    set.references++
  }

  /** As somebody else would make it, of a type that the product may not know. */
  put(set: Pick<FakeIpset, 'name'> & Partial<FakeIpset>): void {
    this.#place({
      type: 'hash:ip',
      family: 2,
      revision: 6,
      maxElements: 65_536,
      hashSize: 1024,
      initialValue: 1,
      timeoutS: undefined,
      elements: new Map(),
      references: 0,
      listings: 0,
      ...set,
    })
  }

  accept(datagram: Uint8Array, from: FakeSocket): void {
    this.datagrams++
    const [first] = readMessages(viewOf(datagram))
    if (this.#options.isPrivileged === false && first !== undefined) {
      from.enqueue(errorReply(first, { errno: errnoNumber('EPERM') }, from.portId))
      return
    }
    answerEach(datagram, from, ({ view, message }) => {
      if (message.type >> 8 !== 6) refuse(ERR.EINVAL)
      const command = message.type & 255
      this.handled.push(command)
      return this.#isTold(command, new FakeRequest(view, message), from) ? 'answered' : undefined
    })
  }

  /** Whether everything there is to say was said; otherwise it was carried out. */
  #isTold(command: number, request: FakeRequest, from: FakeSocket): boolean {
    const { sequence } = request.message
    const head = { command, sequence, portId: from.portId }
    switch (command) {
      case 2:
        this.#create(request)
        return false
      case 3:
        this.#destroy(request)
        return false
      case 4:
        this.#named(request, 2).elements.clear()
        return false
      case 6:
        this.#swap(request)
        return false
      case 7:
        if ((request.message.flags & NLM_F_DUMP) === 0) refuse(ERR.EINVAL)
        from.startDump(
          listMessages(this.#asked(request), {
            sequence,
            portId: from.portId,
            detail: request.number(6) ?? 0,
          }),
          sequence,
        )
        return true
      case 9:
      case 10:
        return this.#entries(request, command, from)
      case 13: {
        const { type, revision, revisionMin } = this.#typeAsked(request)
        const family = request.number(5) ?? 0
        from.enqueue(ipsetMessage(head, TYPE, { protocol: 6, type, family, revision, revisionMin }))
        return true
      }
      case 14: {
        protocolOf(request, 7)
        const index = this.slots.indexOf(this.#named(request, 2, 7))
        from.enqueue(ipsetMessage(head, INDEX, { protocol: 7, index }))
        return true
      }
      case 15: {
        protocolOf(request, 7)
        const set = this.slots[request.number(11) ?? refuse(ERR.PROTOCOL)] ?? refuse(ERR.ENOENT)
        from.enqueue(ipsetMessage(head, INDEX, { protocol: 7, name: set.name }))
        return true
      }
      default:
        return refuse(ERR.EINVAL)
    }
  }

  #typeAsked(request: FakeRequest) {
    protocolOf(request)
    const type = request.string(3) ?? refuse(ERR.PROTOCOL)
    const { min, max } = this.#types[type] ?? refuse(ERR.FIND_TYPE)
    return { type, revision: max, revisionMin: min }
  }

  #create(request: FakeRequest): void {
    protocolOf(request)
    const name = nameIn(request, 2)
    const [type, revision, family] = [request.string(3), request.number(4), request.number(5)]
    const shape = request.nest(7) ?? new Map()
    if (type === undefined || revision === undefined || family === undefined) refuse(ERR.PROTOCOL)
    const known = this.#types[type]
    if (known === undefined || revision < known.min || revision > known.max) refuse(ERR.FIND_TYPE)
    const isHash = type !== 'bitmap:port'
    if (isHash && !this.families.has(family)) refuse(ERR.INVALID_FAMILY)
    const [from, to] = [request.marked(shape, 4), request.marked(shape, 5)]
    if (!isHash && (from === undefined || to === undefined)) refuse(ERR.PROTOCOL)
    const maxElements = isHash ? (request.marked(shape, 19) ?? 65_536) : 65_536
    const hashSize = isHash ? powerOfTwo(request.marked(shape, 18) ?? 1024) : 0
    const there = this.set(name)
    if (there !== undefined) {
      // The family of the type is compared, which is both: not that of the set.
      const isAlike =
        there.type === type && (!isHash || there.maxElements === maxElements) && there.timeoutS === undefined
      const isExclusive = (request.message.flags & NLM_F_EXCL) !== 0
      if (!isAlike || isExclusive) refuse(ERR.EEXIST)
      return
    }
    const made = { name, type, family: isHash ? family : 0, revision, maxElements, hashSize }
    const rest = { timeoutS: undefined, elements: new Map(), references: 0, listings: 0 }
    this.#place({ ...made, initialValue: (++this.#made * 0x9e3779b9) >>> 0, ...rest })
  }

  #place(set: FakeIpset): void {
    const free = this.slots.indexOf(undefined)
    if (free < 0) this.slots.push(set)
    else this.slots[free] = set
  }

  #destroy(request: FakeRequest): void {
    protocolOf(request)
    const sets = request.attribute(2) === undefined ? this.slots : [this.set(nameIn(request, 2))]
    const isStrict = this.#options.destroyIsStrict === true || (request.message.flags & NLM_F_EXCL) !== 0
    if (sets.length === 1 && sets[0] === undefined && isStrict) refuse(ERR.ENOENT)
    if (sets.some(set => set !== undefined && set.references + set.listings > 0)) refuse(ERR.BUSY)
    for (let i = 0; i < this.slots.length; i++) if (sets.includes(this.slots[i])) this.slots[i] = undefined
  }

  #swap(request: FakeRequest): void {
    const from = this.#named(request, 2)
    const to = this.set(nameIn(request, 3)) ?? refuse(ERR.EXIST_SETNAME2)
    if (from.type !== to.type || from.family !== to.family) refuse(ERR.TYPE_MISMATCH)
    if (from.listings + to.listings > 0) refuse(ERR.EBUSY)
    const [fromAt, toAt] = [this.slots.indexOf(from), this.slots.indexOf(to)]
    this.slots[fromAt] = to
    this.slots[toAt] = from
    ;[from.name, to.name] = [to.name, from.name]
    // References are of whoever refers to an index: they stay with it.
    ;[from.references, to.references] = [to.references, from.references]
  }

  /** Goes through the elements up to the first that is refused, whose line then goes back with the whole message. */
  #entries(request: FakeRequest, command: 9 | 10, from: FakeSocket): boolean {
    protocolOf(request)
    const lineAttribute = request.attribute(9)
    const list = request.attribute(8)
    if (request.attribute(2) === undefined || list === undefined || !list.nested) refuse(ERR.PROTOCOL)
    if (lineAttribute === undefined) refuse(ERR.PROTOCOL)
    const set = this.#named(request, 2)
    const isExclusive = (request.message.flags & NLM_F_EXCL) !== 0
    const verb = command === 10 ? 'delete' : isExclusive ? 'add' : 'replace'
    let culprit: { errno: number; line: number } | undefined
    request.forEach(list.start, list.end, (type, nest) => {
      if (culprit !== undefined) return
      if (type !== 7 || !nest.nested) refuse(ERR.PROTOCOL)
      const { line, bytes } = request.element(nest)
      const errno = errnoOf(() => addOrDelete(set, bytes(), verb))
      if (errno === 0 || (errno === ERR.EXIST && !isExclusive)) return
      if (line === 0) refuse(errno)
      culprit = { errno, line }
    })
    if (culprit === undefined) return false
    const start = request.message.start - NLMSG_HDRLEN
    const lineAt = lineAttribute.start - start
    const bytes = request.view.bytes.subarray(start, request.message.end)
    from.enqueue(refusedEntry(bytes, { ...culprit, lineAt, portId: from.portId }))
    return true
  }

  #named(request: FakeRequest, attribute: number, protocol = 6): FakeIpset {
    protocolOf(request, protocol)
    return this.set(nameIn(request, attribute)) ?? refuse(ERR.ENOENT)
  }

  #asked(request: FakeRequest): readonly FakeIpset[] {
    protocolOf(request)
    if (request.attribute(2) === undefined) return this.slots.filter(set => set !== undefined)
    return [this.#named(request, 2)]
  }
}

/** Questions about indexes take protocol 7 alone, the others 6 and newer. */
function protocolOf(request: FakeRequest, needed = 6): void {
  const protocol = request.number(1) ?? 0
  if (needed === 7 ? protocol !== 7 : protocol < 6) refuse(ERR.PROTOCOL)
}

function nameIn(request: FakeRequest, attribute: number): string {
  const name = request.string(attribute) ?? refuse(ERR.PROTOCOL)
  return Buffer.byteLength(name) > 31 ? refuse(ERR.EINVAL) : name
}

function errnoOf(run: () => number): number {
  try {
    return run()
  } catch (error) {
    if (error instanceof Refusal) return error.errno
    throw error
  }
}

function powerOfTwo(size: number): number {
  return Math.max(64, 2 ** Math.ceil(Math.log2(size)))
}
