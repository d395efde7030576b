import { existsSync } from 'node:fs'
import { createRequire } from 'node:module'
import { fileURLToPath } from 'node:url'
import { type Cancel, systemClock } from '../base/clock.ts'
import { errnoName, errnoNumber } from './errors.ts'
import { type Repetition, SystemError, type Transport } from './transport.ts'

export interface NetlinkOptions {
  /** NETLINK_*. */
  readonly protocol: number
  /** Limits the longest datagram; above net.core.wmem_max only with CAP_NET_ADMIN in the initial user namespace. */
  readonly sendBufferBytes?: number
  /** Bytes that the kernel queues before it drops messages and reports ENOBUFS; limited like sendBufferBytes. */
  readonly receiveBufferBytes?: number
  /** Path of the addon, for tests with their own build. */
  readonly addon?: string
}

/** Opens a netlink socket. Throws a SystemError, or an Error when the addon is missing or incompatible. */
export function openNetlink(options: NetlinkOptions): Transport {
  const addon = loadAddon(options.addon ?? findAddon())
  const { protocol, sendBufferBytes = 64 << 20, receiveBufferBytes = 4 << 20 } = options
  const handle = addon.open(protocol, sendBufferBytes, receiveBufferBytes)
  if (typeof handle === 'number') throw failure(`socket(AF_NETLINK, ${protocol})`, handle)
  return new NetlinkSocket(addon, handle)
}

/** Finds the addon: beside the bundle, above the library, or where node-gyp leaves it in a source tree. */
export function findAddon(): string {
  const fromRoot = import.meta.url.endsWith('/src/netlink/native.ts') ? '../../' : '../'
  const candidates = ['./kprobe.node', '../kprobe.node', `${fromRoot}build/Release/kprobe.node`]
  const paths = candidates.map(candidate => fileURLToPath(new URL(candidate, import.meta.url)))
  const found = paths.find(path => existsSync(path))
  if (found === undefined) {
    throw new Error(
      `kprobe's addon is not built (neither ${paths.join(' nor ')} exists): npm run build:native`,
    )
  }
  return found
}

/**
 * Gives free memory of malloc back to the kernel, and these pages: pairs of address and length, which must be of mappings
 * that the kernel reads again from files. Throws a SystemError.
 */
export function releasePages(ranges: BigUint64Array): void {
  const { buffer, byteOffset, byteLength } = ranges
  check('madvise', loadAddon(findAddon()).releasePages(new Uint8Array(buffer, byteOffset, byteLength)))
}

/** native/binding.c. Numbers below zero are -errno. */
interface Addon {
  readonly abi: number
  open(protocol: number, sendBufferBytes: number, receiveBufferBytes: number): Handle | number
  setMember(handle: Handle, group: number, member: number): number
  sendSync(handle: Handle, datagram: Uint8Array): number
  send(handle: Handle, datagram: Uint8Array): Promise<number> | number
  receive(handle: Handle, into: Uint8Array, roomBytes: number): number
  watch(handle: Handle, readable: () => void): number
  repeat(handle: Handle, datagram: Uint8Array, everyMs: number): number
  unwatch(handle: Handle): void
  close(handle: Handle): void
  releasePages(ranges: Uint8Array): number
}

interface Handle {
  readonly portId: number
  readonly sendLimitBytes: number
}

const ABI = 5
const EAGAIN = -errnoNumber('EAGAIN')
const EBADF = -errnoNumber('EBADF')
/** Pause of a watch after a wake in which all receives failed. */
const REST_MS = 100

function loadAddon(path: string): Addon {
  let loaded: unknown
  try {
    loaded = createRequire(import.meta.url)(path)
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause)
    throw new Error(`cannot load kprobe's addon: ${reason}: rebuild it with npm run build:native`, { cause })
  }
  if (isAddon(loaded)) return loaded
  throw new Error(
    `${path} was built from other sources than this program: rebuild it with npm run build:native`,
  )
}

/** Compares only the version number: binding.c changes it together with its functions. */
function isAddon(loaded: unknown): loaded is Addon {
  return typeof loaded === 'object' && loaded !== null && 'abi' in loaded && loaded.abi === ABI
}

function failure(syscall: string, status: number): SystemError {
  return new SystemError(syscall, -status, errnoName(-status))
}

function check(syscall: string, status: number): void {
  if (status < 0) throw failure(syscall, status)
}

class NetlinkSocket implements Transport {
  readonly portId: number
  readonly sendLimitBytes: number
  readonly #addon: Addon
  readonly #handle: Handle
  /** These promises never reject. */
  readonly #sending = new Set<Promise<number>>()
  #closed = false
  /** True if a receive succeeded since the last wake; undefined while none has succeeded or failed. */
  #received: boolean | undefined

  constructor(addon: Addon, handle: Handle) {
    this.#addon = addon
    this.#handle = handle
    this.portId = handle.portId
    this.sendLimitBytes = handle.sendLimitBytes
  }

  sendSync(datagram: Uint8Array): void {
    check('sendmsg', this.#closed ? EBADF : this.#addon.sendSync(this.#handle, datagram))
  }

  async send(datagram: Uint8Array): Promise<void> {
    const sending = this.#closed ? EBADF : this.#addon.send(this.#handle, datagram)
    if (typeof sending === 'number') return check('sendmsg', sending)
    this.#sending.add(sending)
    const status = await sending
    this.#sending.delete(sending)
    check('sendmsg', status)
  }

  receive(into: Uint8Array, roomBytes = into.length): number | undefined {
    const status = this.#closed ? EBADF : this.#addon.receive(this.#handle, into, roomBytes)
    if (status === EAGAIN) return undefined
    this.#received = status >= 0 || this.#received === true
    check('recvmsg', status)
    return status
  }

  watch(readable: () => void): () => void {
    let [watching, cancel]: [boolean, Cancel | undefined] = [true, undefined]
    const begin = (): void => {
      if (!this.#closed) check('watch', this.#addon.watch(this.#handle, woken))
    }
    // A socket of which nothing can be received stays readable, and would wake the process all the time.
    const woken = (): void => {
      this.#received = undefined
      readable()
      if (!watching || this.#received !== false) return
      this.#addon.unwatch(this.#handle)
      cancel = systemClock.after(REST_MS, begin)
    }
    check('watch', this.#addon.watch(this.#handle, woken))
    return () => {
      cancel?.()
      // A second call must not end a later watch.
      if (watching) this.#addon.unwatch(this.#handle)
      watching = false
    }
  }

  repeat(datagram: Uint8Array, everyMs: number, changed: () => void): Repetition {
    // Much longer than the answer.
    const answer = new Uint8Array(256)
    const read = () => (this.#closed ? EAGAIN : this.#addon.receive(this.#handle, answer, answer.length))
    const stop = this.watch(() => {
      // An answer that an error left behind would be taken for the next one.
      let status = read()
      while (status > 0) status = read()
      if (status !== EAGAIN) this.#received = false
      changed()
    })
    const status = this.#addon.repeat(this.#handle, datagram, everyMs)
    if (status < 0) stop()
    check('repeat', status)
    return {
      expect: octets =>
        check('repeat', this.#addon.repeat(this.#handle, Buffer.concat([datagram, octets]), everyMs)),
      stop,
    }
  }

  join(group: number): void {
    check(`setsockopt(NETLINK_ADD_MEMBERSHIP, ${group})`, this.#setMember(group, 1))
  }

  leave(group: number): void {
    check(`setsockopt(NETLINK_DROP_MEMBERSHIP, ${group})`, this.#setMember(group, 0))
  }

  async close(): Promise<void> {
    this.#closed = true
    this.#addon.close(this.#handle)
    await Promise.all(this.#sending)
  }

  #setMember(group: number, member: number): number {
    return this.#closed ? EBADF : this.#addon.setMember(this.#handle, group, member)
  }
}
