import { assert } from '../../../src/base/errors.ts'
import type { Octets } from '../../../src/base/octets.ts'
import {
  COMMAND,
  INFO,
  IPVS_CMD_DEL_DEST,
  IPVS_CMD_DEL_SERVICE,
  IPVS_CMD_GET_CONFIG,
  IPVS_CMD_GET_DEST,
  IPVS_CMD_GET_INFO,
  IPVS_CMD_GET_SERVICE,
  IPVS_CMD_NEW_DEST,
  IPVS_CMD_NEW_SERVICE,
  IPVS_CMD_SET_CONFIG,
  IPVS_CMD_SET_DEST,
  IPVS_CMD_SET_INFO,
  IPVS_CMD_SET_SERVICE,
  type IpvsTimeouts,
} from '../../../src/kernel/ipvs/state.ts'
import type { ByteView } from '../../../src/netlink/attribute.ts'
import { NLM_F_DUMP, NLM_F_MULTI } from '../../../src/netlink/constants.ts'
import {
  CTRL_CMD_GETFAMILY,
  CTRL_CMD_NEWFAMILY,
  FAMILY,
  GENL_ID_CTRL,
  genericSpan,
  readGenlMsgHdr,
} from '../../../src/netlink/genetlink.ts'
import type { Message } from '../../../src/netlink/message.ts'
import { readAttributes } from '../../../src/netlink/schema.ts'
import { refuse } from '../fake-kernel/call.ts'
import { Refusal } from '../fake-kernel/objects.ts'
import type { ReplyHead } from '../fake-kernel/replies.ts'
import {
  type Asked,
  answerEach,
  FakeSocket,
  type SocketKernel,
  type SocketOptions,
} from '../fake-kernel/socket.ts'
import { addressKey, destinationKeyOf, type FakeDestination, type FakeServer } from './objects.ts'
import {
  addressIn,
  checkLimits,
  checkReachable,
  checkSettings,
  commandIn,
  destinationIn,
  settingsIn,
} from './parse.ts'
import { destinationMessage, genericMessage, serverMessage } from './replies.ts'

export interface FakeIpvsOptions {
  /** Those that the kernel has or can load. */
  readonly schedulers?: readonly string[]
  readonly hasIpv6?: boolean
  /** CAP_NET_ADMIN in the first user namespace. */
  readonly isPrivileged?: boolean
}

const SCHEDULERS = 'rr wrr lc wlc lblc lblcr dh sh mh sed nq fo ovf'.split(' ')
const FAMILY_ID_FIRST = 0x1c
const VERSION_CODE = 0x010201
const CONNECTION_TABLE_SIZE = 4096
/** INT_MAX / HZ. */
const TIMEOUT_MAX_S = Math.floor(0x7fff_ffff / 250)

/**
 * IPVS of one network namespace, in memory, spoken to in bytes over generic netlink. What it refuses and how is what
 * ip_vs_ctl.c does (Linux 6.1 to 6.16); test/contract holds it against the kernel in the guest.
 */
export class FakeIpvs implements SocketKernel {
  readonly servers = new Map<string, FakeServer>()
  timeouts: IpvsTimeouts = { tcpS: 900, tcpFinS: 120, udpS: 300 }
  #familyId: number | undefined = FAMILY_ID_FIRST
  #loads = 0
  #ports = 1000
  readonly #schedulers: ReadonlySet<string>
  /** CONFIG_IP_VS_IPV6. */
  hasIpv6: boolean
  readonly #isPrivileged: boolean

  constructor({ schedulers = SCHEDULERS, hasIpv6 = true, isPrivileged = true }: FakeIpvsOptions = {}) {
    this.#schedulers = new Set(schedulers)
    this.hasIpv6 = hasIpv6
    this.#isPrivileged = isPrivileged
  }

  /** A socket of NETLINK_GENERIC with NETLINK_CAP_ACK and NETLINK_EXT_ACK. */
  open(options: SocketOptions = {}): FakeSocket {
    return new FakeSocket(this, ++this.#ports, options)
  }

  /** Takes the module ip_vs out of the kernel; servers hold it. */
  unload(): void {
    assert(this.servers.size === 0, 'the module is in use')
    this.#familyId = undefined
  }

  /** Puts it back: its family gets another number. */
  load(): void {
    this.#familyId = FAMILY_ID_FIRST + ++this.#loads
  }

  accept(datagram: Uint8Array, from: FakeSocket): void {
    answerEach(datagram, from, asked => this.#answer(asked))
  }

  #answer(asked: Asked): 'answered' | 'done' {
    const { view, message, from } = asked
    if (message.type === GENL_ID_CTRL) return this.#control(asked)
    if (message.type !== this.#familyId) return refuse('ENOENT')
    const { command } = readGenlMsgHdr(view, message)
    const dumps = (message.flags & NLM_F_DUMP) === NLM_F_DUMP
    const makeDump = dumps ? this.#dumpOf(command) : undefined
    const write = dumps ? undefined : this.#requestOf(command)
    if (makeDump === undefined && write === undefined) return refuse('EOPNOTSUPP')
    if (!this.#isPrivileged) return refuse('EPERM')
    if (makeDump !== undefined) {
      from.startDump(makeDump(asked), message.sequence)
      return 'answered'
    }
    write?.(asked)
    return 'done'
  }

  #control({ view, message, from }: Asked): 'done' {
    if (readGenlMsgHdr(view, message).command !== CTRL_CMD_GETFAMILY) return refuse('EOPNOTSUPP')
    const { name } = readAttributes(view, FAMILY, genericSpan(message))
    if (name === undefined) return refuse('EINVAL')
    const id = this.#familyId
    if (name !== 'IPVS' || id === undefined) return refuse('ENOENT')
    const head = { type: GENL_ID_CTRL, command: CTRL_CMD_NEWFAMILY, version: 2, flags: 0 }
    const values = { name, id, version: 1, headerBytes: 0, attributeMax: 6 }
    from.enqueue(genericMessage({ ...head, sequence: message.sequence, portId: from.portId }, FAMILY, values))
    return 'done'
  }

  #dumpOf(command: number): ((asked: Asked) => Generator<Uint8Array>) | undefined {
    if (command === IPVS_CMD_GET_SERVICE) return asked => this.#dumpServers(asked)
    return command === IPVS_CMD_GET_DEST ? asked => this.#dumpDestinations(asked) : undefined
  }

  /** Counts what it has told, and nothing else: what comes or goes meanwhile shifts the rest. */
  *#dumpServers({ message, from }: Asked): Generator<Uint8Array> {
    for (let told = 0; ; told++) {
      const server = [...this.servers.values()][told]
      if (server === undefined) return
      yield serverMessage(this.#head(message, from, NLM_F_MULTI), server)
    }
  }

  /** Newest first. Whatever is wrong with the request, the answer is an empty list. */
  *#dumpDestinations({ view, message, from }: Asked): Generator<Uint8Array> {
    for (let told = 0; ; told++) {
      const destination = [...(this.#found(view, message)?.destinations.values() ?? [])].reverse()[told]
      if (destination === undefined) return
      yield destinationMessage(this.#head(message, from, NLM_F_MULTI), destination)
    }
  }

  #found(view: ByteView, message: Message): FakeServer | undefined {
    try {
      return this.servers.get(addressKey(addressIn(commandIn(view, message).service, this.hasIpv6)))
    } catch (error) {
      if (error instanceof Refusal) return undefined
      throw error
    }
  }

  #requestOf(command: number): ((asked: Asked) => void) | undefined {
    switch (command) {
      case IPVS_CMD_NEW_SERVICE:
      case IPVS_CMD_SET_SERVICE:
        return asked => this.#setServer(asked, command)
      case IPVS_CMD_DEL_SERVICE:
        return ({ view, message }) => {
          this.servers.delete(addressKey(this.#existing(view, message)))
        }
      case IPVS_CMD_NEW_DEST:
      case IPVS_CMD_SET_DEST:
      case IPVS_CMD_DEL_DEST:
        return asked => this.#changeDestination(asked, command)
      case IPVS_CMD_GET_SERVICE:
        return ({ view, message, from }) => {
          const server = this.#existing(view, message)
          from.enqueue(serverMessage(this.#head(message, from), server))
        }
      case IPVS_CMD_SET_CONFIG:
        return ({ view, message }) => this.#setTimeouts(view, message)
      case IPVS_CMD_GET_CONFIG:
        return ({ message, from }) => {
          const head = { ...this.#head(message, from), command: IPVS_CMD_SET_CONFIG }
          from.enqueue(genericMessage(head, COMMAND, this.timeouts))
        }
      case IPVS_CMD_GET_INFO:
        return ({ message, from }) => {
          const head = { ...this.#head(message, from), command: IPVS_CMD_SET_INFO }
          const values = { version: VERSION_CODE, connectionTableSize: CONNECTION_TABLE_SIZE }
          from.enqueue(genericMessage(head, INFO, values))
        }
      default:
        return undefined
    }
  }

  #setServer({ view, message }: Asked, command: number): void {
    const { service = {} } = commandIn(view, message)
    const address = addressIn(service, this.hasIpv6)
    const settings = settingsIn(service)
    const existing = this.servers.get(addressKey(address))
    if (command === IPVS_CMD_SET_SERVICE && existing === undefined) refuse('ESRCH')
    if (command === IPVS_CMD_NEW_SERVICE && existing !== undefined) refuse('EEXIST')
    checkSettings(address, settings, this.#schedulers)
    if (existing !== undefined) Object.assign(existing, settings)
    else
      this.servers.set(addressKey(address), {
        ...address,
        ...settings,
        destinations: new Map(),
      })
  }

  #existing(view: ByteView, message: Message): FakeServer {
    const address = addressIn(commandIn(view, message).service, this.hasIpv6)
    return this.servers.get(addressKey(address)) ?? refuse('ESRCH')
  }

  #changeDestination({ view, message }: Asked, command: number): void {
    const server = this.#existing(view, message)
    const full = command !== IPVS_CMD_DEL_DEST
    const destination = destinationIn(commandIn(view, message).destination, server, {
      full,
      hasIpv6: this.hasIpv6,
    })
    const key = destinationKeyOf(destination)
    const existing = server.destinations.get(key)
    if (full) checkLimits(destination)
    if (command === IPVS_CMD_NEW_DEST) {
      if (existing !== undefined) refuse('EEXIST')
      checkReachable(destination)
      server.destinations.set(key, destination)
      return
    }
    if (existing === undefined) refuse('ENOENT')
    if (full) Object.assign(existing ?? {}, settingsOf(destination))
    else server.destinations.delete(key)
  }

  #setTimeouts(view: ByteView, message: Message): void {
    const { tcpS = 0, tcpFinS = 0, udpS = 0 } = commandIn(view, message)
    if (Math.max(tcpS, tcpFinS, udpS) > TIMEOUT_MAX_S) refuse('EINVAL')
    const { timeouts } = this
    this.timeouts = {
      tcpS: tcpS || timeouts.tcpS,
      tcpFinS: tcpFinS || timeouts.tcpFinS,
      udpS: udpS || timeouts.udpS,
    }
  }

  #head({ sequence }: Message, { portId }: FakeSocket, flags = 0): ReplyHead {
    return { type: this.#familyId ?? 0, flags, sequence, portId }
  }
}

function settingsOf({ weight, forwarding, connectionsMax, connectionsLow }: FakeDestination) {
  return { weight, forwarding, connectionsMax, connectionsLow }
}

/** The virtual server that a test looks into: by its address of 4 or 16 bytes. */
export function serverIn(
  kernel: FakeIpvs,
  { ip, port }: { readonly ip: Octets; readonly port: number },
): FakeServer {
  const found = [...kernel.servers.values()].find(
    server => server.address === ip.padEnd(16, '\0') && server.port === port && server.mark === 0,
  )
  assert(found !== undefined, 'there is no such virtual server')
  return found
}
