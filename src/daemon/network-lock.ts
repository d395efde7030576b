import { readFile } from 'node:fs/promises'
import { connect, createServer, type Server } from 'node:net'
import type { Clock } from '../base/clock.ts'
import { codeOf } from '../base/errors.ts'
import { oneLine } from '../base/text.ts'
import { socketsOfProcess } from '../kernel/socket/listeners.ts'
import { NETLINK_NETFILTER } from '../netlink/constants.ts'
import { openNetlink } from '../netlink/native.ts'
import { SystemError, type Transport } from '../netlink/transport.ts'

interface Member {
  readonly portId: number
  readonly inode: string
}

type LockSocket = Pick<Transport, 'portId' | 'join' | 'close'>

interface NetworkLockOptions {
  readonly clock: Clock
  readonly random: () => number
  readonly openSocket: () => LockSocket
  readonly listSockets: () => Promise<string>
  readonly takeName: TakeLock
}

/**
 * A lock is a socket that has joined the groups of its name's hash. These groups of NETLINK_NETFILTER are unused by the
 * kernel (NFNLGRP_MAX is 9), and any socket may join them (af_netlink.c makes at least 32).
 */
const FIRST_GROUP = 13
const GROUPS = 20
const GROUP_BITS = 0xfffff000
const PAUSE = { minMs: 20, spanMs: 80 } as const
/** Process numbers do not exceed this (PID_MAX_LIMIT); a higher port id is not one. */
const PID_MAX = 1 << 22

export function systemLock(
  clock: Clock,
  random: () => number,
  changes: Partial<NetworkLockOptions> = {},
): TakeLock {
  return networkLock({
    clock,
    random,
    openSocket: () => openNetlink({ protocol: NETLINK_NETFILTER, sendBufferBytes: 0, receiveBufferBytes: 0 }),
    listSockets: () => readFile('/proc/net/netlink', 'latin1'),
    takeName: takeLock,
    ...changes,
  })
}

/**
 * Lists the sockets (inodes) of the process that holds this lock in this network namespace. Empty if no process does,
 * or if it is not visible, as in another PID namespace.
 */
export async function holderSockets(name: string): Promise<ReadonlySet<number>> {
  const listSockets = () => readFile('/proc/net/netlink', 'latin1')
  for (const { portId, inode } of (await members({ listSockets }, maskOf(name))) ?? []) {
    const sockets = portId > PID_MAX ? NO_SOCKETS : socketsSeen(portId)
    // A port id equals the process number only by convention.
    if (sockets.has(Number(inode))) return sockets
  }
  return NO_SOCKETS
}

/** Tests whether a process of this network namespace holds this lock; undefined where the kernel's list cannot be read. */
export async function isLockHeld(name: string): Promise<boolean | undefined> {
  const holders = await members({ listSockets: () => readFile('/proc/net/netlink', 'latin1') }, maskOf(name))
  if (holders === undefined || holders.length > 0) return holders && true
  return (await askHolder(name)) !== ''
}

const NO_SOCKETS: ReadonlySet<number> = new Set()

function socketsSeen(process: number): ReadonlySet<number> {
  try {
    return socketsOfProcess(process)
  } catch (error) {
    if (isUnreadable(error)) return NO_SOCKETS
    throw error
  }
}

function isUnreadable(error: unknown): boolean {
  return ['ENOENT', 'EACCES'].includes(codeOf(error))
}

/**
 * Makes a lock that exists once in a network namespace. Only a process with CAP_NET_ADMIN there can take it, and the
 * kernel releases it at every kind of exit: see docs/decisions/0010. The holder takes the abstract name as well, if it
 * is free, and answers there. If the kernel forbids this process to take the lock, or does not list sockets, the
 * abstract name alone is the lock.
 */
export function networkLock(options: NetworkLockOptions): TakeLock {
  return async (name, holder) => {
    const mask = maskOf(name)
    const joined = await join(options, mask)
    if (joined.kind === 'busy') return { kind: 'busy', holder: await holderOf(name, joined.by) }
    if (joined.kind === 'unavailable') return await options.takeName(name, holder)
    const { socket } = joined
    const named = await options.takeName(name, holder).catch(async thrown => {
      await socket.close()
      throw thrown
    })
    return {
      kind: 'held',
      rival: async () => {
        const all = (await members(options, mask)) ?? []
        const others = all.filter(({ portId }) => portId !== socket.portId)
        const first = others.find(({ portId }) => portId < socket.portId)
        const other = first ?? others[0]
        return other && { holder: await holderOf(name, other), stays: first !== undefined }
      },
      release: async () => {
        if (named.kind === 'held') await named.release()
        await socket.close()
      },
    }
  }
}

type Joined =
  | { readonly kind: 'held'; readonly socket: LockSocket }
  | { readonly kind: 'busy'; readonly by: Member }
  | { readonly kind: 'unavailable' }

/**
 * Joins the groups first and then reads the list: of two processes, the later one sees the earlier one. If several
 * start at once, all may withdraw and retry after a random pause. A socket that is listed twice belongs to a holder.
 */
async function join(options: NetworkLockOptions, mask: number): Promise<Joined> {
  let seen: Member | undefined
  // Twelve tries, with random pauses between them: several processes that start together do not meet each time.
  for (let attempt = 0; attempt < 12; attempt++) {
    if (seen !== undefined) await pause(options)
    const tried = await joinOnce(options, mask)
    if (tried.kind !== 'busy') return tried
    if (tried.by.inode === seen?.inode) return tried
    seen = tried.by
  }
  return seen === undefined ? { kind: 'unavailable' } : { kind: 'busy', by: seen }
}

async function joinOnce(options: NetworkLockOptions, mask: number): Promise<Joined> {
  const before = await members(options, mask)
  if (before === undefined) return { kind: 'unavailable' }
  if (before[0] !== undefined) return { kind: 'busy', by: before[0] }
  const socket = options.openSocket()
  try {
    for (const group of groupsOf(mask)) socket.join(group)
  } catch (error) {
    await socket.close()
    if (error instanceof SystemError && error.code === 'EPERM') return { kind: 'unavailable' }
    throw error
  }
  const after = await members(options, mask)
  const other = after?.find(({ portId }) => portId !== socket.portId)
  if (after !== undefined && other === undefined) return { kind: 'held', socket }
  await socket.close()
  return other === undefined ? { kind: 'unavailable' } : { kind: 'busy', by: other }
}

/** Lists the holders; undefined without a readable /proc. */
async function members(
  { listSockets }: Pick<NetworkLockOptions, 'listSockets'>,
  mask: number,
): Promise<readonly Member[] | undefined> {
  try {
    return membersOf(await listSockets(), mask)
  } catch (error) {
    if (isUnreadable(error)) return undefined
    throw error
  }
}

/**
 * Finds the sockets of NETLINK_NETFILTER in these groups, in the format of /proc/net/netlink (netlink_native_seq_show).
 */
export function membersOf(text: string, mask: number): readonly Member[] {
  const found: Member[] = []
  for (const line of text.split('\n').slice(1)) {
    const columns = line.trim().split(/\s+/)
    const [, protocol, portId, groups = ''] = columns
    if (Number(protocol) !== NETLINK_NETFILTER) continue
    if ((Number.parseInt(groups, 16) & GROUP_BITS) >>> 0 !== mask) continue
    found.push({ portId: Number(portId), inode: columns.at(-1) ?? '' })
  }
  return found
}

/** Hashes a name (FNV-1a), folded into the bits of the groups; never 0. */
export function maskOf(name: string): number {
  let hash = 0x811c9dc5
  for (const byte of Buffer.from(name)) hash = Math.imul(hash ^ byte, 0x01000193)
  const folded = ((hash >>> GROUPS) ^ hash) & ((1 << GROUPS) - 1)
  return ((folded === 0 ? 1 : folded) << (FIRST_GROUP - 1)) >>> 0
}

function groupsOf(mask: number): readonly number[] {
  return Array.from({ length: GROUPS }, (_, i) => FIRST_GROUP + i).filter(
    group => (mask & (1 << (group - 1))) !== 0,
  )
}

/** Gives the holder's answer if the kernel names the same process: any process may take the abstract name. */
async function holderOf(name: string, { portId }: Member): Promise<string> {
  const said = await askHolder(name)
  const process = `pid ${portId}`
  return portId > PID_MAX || said === process || said.startsWith(`${process} `) ? said : process
}

function pause({ clock, random }: NetworkLockOptions): Promise<void> {
  return new Promise(resolve => {
    clock.after(PAUSE.minMs + random() * PAUSE.spanMs, resolve)
  })
}

export type LockResult =
  | {
      readonly kind: 'held'
      readonly release: () => Promise<void>
      /**
       * Looks for a process that holds the lock as well; absent where none can. Throws what the kernel's list throws.
       */
      readonly rival?: () => Promise<Rival | undefined>
    }
  /** Another process has it; `holder` is its answer, empty when it does not answer. */
  | { readonly kind: 'busy'; readonly holder: string }

export interface Rival {
  /** The holder's own description; empty when it does not answer. */
  readonly holder: string
  /** It is to stay, and this process is to end; else the reverse. */
  readonly stays: boolean
}

/** Takes a lock by its name; `holder` is for those who come later. */
export type TakeLock = (name: string, holder: string) => Promise<LockResult>

/**
 * An abstract unix socket (unix(7)): it exists once in a network namespace and ends with its process, however that dies.
 * Any process may take any name, and runtimes differ in whether they pad it with NULs to 108 octets (libuv before 1.47
 * does), so that it is no lock against other users or versions of Node.js. Later processes read `holder`.
 */
export async function takeLock(name: string, holder: string): Promise<LockResult> {
  const server = createServer(socket => {
    socket.on('error', () => socket.destroy())
    socket.end(holder)
  })
  const taken = await listen(server, `\0${name}`)
  if (!taken) return { kind: 'busy', holder: await askHolder(name) }
  // The lock alone keeps no process alive.
  server.unref()
  return { kind: 'held', release: () => new Promise(resolve => server.close(() => resolve())) }
}

function listen(server: Server, path: string): Promise<boolean> {
  return new Promise((resolve, reject) => {
    server.once('error', (error: NodeJS.ErrnoException) => {
      if (error.code === 'EADDRINUSE') resolve(false)
      else reject(error)
    })
    server.listen({ path }, () => resolve(true))
  })
}

function askHolder(name: string): Promise<string> {
  return new Promise(resolve => {
    let answer = ''
    const socket = connect({ path: `\0${name}` })
    socket.setEncoding('utf8')
    // The holder's name is for a message alone: half a second and 200 letters are enough.
    socket.setTimeout(500, () => socket.destroy())
    socket.on('data', (text: string) => {
      answer += text
      if (answer.length > 200) socket.destroy()
    })
    // A holder that is dying or stopped does not answer: it still has the lock.
    socket.on('error', () => socket.destroy())
    socket.on('close', () => resolve(oneLine(answer.slice(0, 200))))
  })
}
