import { readdir, readFile, readlink, stat } from 'node:fs/promises'
import type { Clock } from '../base/clock.ts'
import {
  askHolder,
  type LockResult,
  NAME_LENGTH_MAX,
  type TakeLock,
  takeLock,
} from '../base/instance-lock.ts'
import { abstractListeners, socketsOfProcess, type UnixListener } from '../kernel/socket/listeners.ts'
import { Connection, PASSING } from '../netlink/connection.ts'
import { NETLINK_NETFILTER, NETLINK_SOCK_DIAG } from '../netlink/constants.ts'
import { OutcomeUnknownError } from '../netlink/errors.ts'
import { openNetlink } from '../netlink/native.ts'
import { SystemError, type Transport } from '../netlink/transport.ts'

/** A netlink socket as the kernel lists it. */
interface Member {
  readonly portId: number
  readonly inode: string
}

type LockSocket = Pick<Transport, 'portId' | 'join' | 'close'>

interface NetworkLockOptions {
  readonly clock: Clock
  /** Uniform in [0, 1). */
  readonly random: () => number
  readonly openSocket: () => LockSocket
  /** Reads /proc/net/netlink. */
  readonly listSockets: () => Promise<string>
  /** Lists the listeners at an abstract name; see abstractListeners. */
  readonly listenersAt: (name: string) => Promise<readonly UnixListener[] | undefined>
  /** Tests whether a process with this socket has CAP_NET_ADMIN; see ownerIsAdmin. */
  readonly ownerIsAdmin: (inode: number, users: readonly number[]) => Promise<boolean | undefined>
  /** Takes an abstract name: takeLock of base/instance-lock.ts. */
  readonly takeName: TakeLock
  /** Users that may hold the abstract name. */
  readonly trusted: readonly number[]
}

/**
 * A lock is a socket that has joined the groups of its name's hash. These groups of NETLINK_NETFILTER are unused by the
 * kernel (NFNLGRP_MAX is 9), and any socket may join them (af_netlink.c makes at least 32).
 */
const FIRST_GROUP = 13
const GROUPS = 20
const GROUP_BITS = 0xfffff000
const ATTEMPTS_MAX = 12
const PAUSE = { minMs: 20, spanMs: 80 } as const
/** Process numbers do not exceed this (PID_MAX_LIMIT); a higher port id is not one. */
const PID_MAX = 1 << 22
const ROOT = 0

/** Makes the lock in this machine's kernel. */
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
    listenersAt: name => listenersAt(clock, name),
    ownerIsAdmin,
    takeName: takeLock,
    trusted: [ROOT, process.geteuid?.() ?? ROOT],
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

const NO_SOCKETS: ReadonlySet<number> = new Set()

function socketsSeen(process: number): ReadonlySet<number> {
  try {
    return socketsOfProcess(process)
  } catch (error) {
    if (error instanceof Error && 'code' in error && (error.code === 'ENOENT' || error.code === 'EACCES'))
      return NO_SOCKETS
    throw error
  }
}

/**
 * Lists the sockets that listen at an abstract name; undefined if the kernel cannot list them. Retries transient
 * failures: a short lack of kernel memory does not fail the start.
 */
export async function listenersAt(clock: Clock, name: string): Promise<readonly UnixListener[] | undefined> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await listOnce(clock, name)
    } catch (error) {
      const mayPass =
        error instanceof OutcomeUnknownError || (error instanceof SystemError && PASSING.has(error.code))
      if (!mayPass || attempt === LIST_ATTEMPTS) throw error
    }
    await new Promise<void>(resolve => clock.after(PAUSE.minMs * attempt, resolve))
  }
}

const LIST_ATTEMPTS = 4

async function listOnce(clock: Clock, name: string): Promise<readonly UnixListener[] | undefined> {
  let transport: Transport
  try {
    transport = openNetlink({ protocol: NETLINK_SOCK_DIAG })
  } catch (error) {
    if (error instanceof SystemError && error.code === 'EPROTONOSUPPORT') return undefined
    throw error
  }
  try {
    return await abstractListeners(new Connection({ transport, clock }), name)
  } finally {
    await transport.close()
  }
}

/**
 * Makes a lock that exists once in a network namespace. Only a process with CAP_NET_ADMIN there can take it, and the
 * kernel releases it at every kind of exit: see docs/decisions/0010. If the kernel forbids this process to take it, or
 * does not list sockets, the abstract name alone is the lock.
 */
export function networkLock(options: NetworkLockOptions): TakeLock {
  return async (name, holder) => {
    const joined = await join(options, maskOf(name))
    if (joined.kind === 'busy') return { kind: 'busy', holder: await holderOf(name, joined.by) }
    const socket = joined.kind === 'held' ? joined.socket : undefined
    try {
      const result = await announce(options, { name, holder, alone: socket !== undefined })
      if (result.kind === 'busy') await socket?.close()
      if (result.kind === 'busy' || socket === undefined) return result
      const release = async () => {
        await result.release()
        await socket.close()
      }
      return { ...result, release }
    } catch (error) {
      await socket?.close()
      throw error
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
  for (let attempt = 0; attempt < ATTEMPTS_MAX; attempt++) {
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
    if (error instanceof Error && 'code' in error && (error.code === 'ENOENT' || error.code === 'EACCES'))
      return undefined
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

interface Announcement {
  readonly name: string
  readonly holder: string
  /**
   * This process holds the lock in the kernel: another holder of the name is an older version, or has no right to it.
   */
  readonly alone: boolean
}

/**
 * Takes both forms of the abstract name, too. Earlier versions of kprobe check it, and later processes read from it
 * which process holds the lock. Another holder of the name counts only if it runs as root or as the user of this
 * process, with CAP_NET_ADMIN. If the capability is not readable, the process may be a rival: see `rival` of
 * LockResult. A killed process may keep the name for a moment.
 */
async function announce(options: NetworkLockOptions, announcement: Announcement): Promise<LockResult> {
  const { name, alone } = announcement
  for (let attempt = 1; ; attempt++) {
    const isLast = attempt === ATTEMPTS_MAX
    const others = (alone ? await claimants(options, name) : undefined) ?? []
    const isElder = others.some(({ isAdmin }) => isAdmin === true)
    if (others.length === 0 || (isLast && !isElder)) {
      const forms = await takeForms(options, announcement)
      if (alone) return await heldWith(options, announcement, forms)
      if (forms.other === undefined) return { kind: 'held', release: forms.release }
      await forms.release()
    }
    if (isLast) return { kind: 'busy', holder: await askHolder(name) }
    await pause(options)
  }
}

interface Claimant {
  /** Undefined if the process is not visible. */
  readonly isAdmin: true | undefined
}

/**
 * Lists the listeners at the name that may be a kprobe, this one included; undefined if the kernel cannot list them.
 */
async function claimants(
  options: NetworkLockOptions,
  name: string,
): Promise<readonly Claimant[] | undefined> {
  const { trusted } = options
  const listeners = await options.listenersAt(name)
  const found: Claimant[] = []
  for (const { uid, inode } of listeners ?? []) {
    const isAdmin = trusted.includes(uid) && (await options.ownerIsAdmin(inode, trusted))
    if (isAdmin !== false) found.push({ isAdmin })
  }
  return listeners === undefined ? undefined : found
}

/** Gives the result for a process that holds the lock in the kernel, and these forms of the abstract name. */
async function heldWith(
  options: NetworkLockOptions,
  { name, holder }: Announcement,
  { held, other, release }: Forms,
): Promise<LockResult> {
  const isShared = async () => {
    const found = await claimants(options, name)
    return found === undefined ? undefined : found.length > held
  }
  const isEarlier = (await isShared()) ?? other !== undefined
  const rival = async () => {
    const shared = await isShared()
    if (shared === false) return undefined
    const said = await askHolder(name, held === 0 ? '' : holder)
    // If the kernel does not list listeners, only an answer proves one.
    const isThere = shared === true || (isEarlier && said !== '')
    return isThere ? { holder: said, isEarlier } : undefined
  }
  return { kind: 'held', release, rival, isDoubted: isEarlier }
}

interface Forms {
  readonly release: () => Promise<void>
  /** Answer of another holder; undefined if there is none. */
  readonly other: string | undefined
  /** Number of forms that this process holds. */
  readonly held: number
}

/**
 * Takes the forms of the name. With a runtime that pads names itself, the process finds the second form held by itself.
 */
async function takeForms({ takeName }: NetworkLockOptions, { name, holder }: Announcement): Promise<Forms> {
  const held: (() => Promise<void>)[] = []
  let other: string | undefined
  for (const form of [name.padEnd(NAME_LENGTH_MAX, '\0'), name]) {
    const result = await takeName(form, holder)
    if (result.kind === 'held') held.push(result.release)
    else if (held.length === 0 || result.holder !== holder) other = result.holder
  }
  const release = async () => {
    for (const each of held) await each()
  }
  return { release, other, held: held.length }
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

/** Maximum number of links of all processes together: one process may have a million descriptors. */
const LINKS_MAX = 1 << 16
/** The capability's number in linux/capability.h. */
const CAP_NET_ADMIN = 12n

/**
 * Tests whether a process that has this socket open has CAP_NET_ADMIN in the user namespace of this process. Undefined
 * if /proc does not show the process: it is in another PID namespace, has more privileges, or belongs to a user that is
 * not in `users`.
 */
export async function ownerIsAdmin(inode: number, users: readonly number[]): Promise<boolean | undefined> {
  const wanted = `socket:[${inode}]`
  let left = LINKS_MAX
  let isSeen = false
  for await (const pid of processes()) {
    const { uid } = (await stat(`/proc/${pid}`).catch(gone)) ?? {}
    if (uid === undefined || !users.includes(uid)) continue
    const fds = await list(`/proc/${pid}/fd`)
    left -= fds.length
    if (left < 0) return undefined
    const links = await Promise.all(fds.map(fd => readlink(`/proc/${pid}/fd/${fd}`).catch(gone)))
    if (!links.includes(wanted)) continue
    if (await isAdmin(pid)) return true
    isSeen = true
  }
  return isSeen ? false : undefined
}

/** This process first: at a start, the socket in question is nearly always its own, and a node runs hundreds. */
async function* processes(): AsyncGenerator<string> {
  yield 'self'
  for (const name of await list('/proc')) if (/^\d+$/.test(name)) yield name
}

async function list(folder: string): Promise<readonly string[]> {
  return (await readdir(folder).catch(gone)) ?? []
}

/** Ignores errors: processes may end during the read, and those with more privileges are not readable. */
function gone(): undefined {
  return undefined
}

/** Compares user namespaces, too: any user may have all capabilities in a user namespace of their own. */
async function isAdmin(pid: string): Promise<boolean> {
  const [theirs, ours] = await Promise.all(
    [pid, 'self'].map(each => readlink(`/proc/${each}/ns/user`).catch(gone)),
  )
  const status = (await readFile(`/proc/${pid}/status`, 'latin1').catch(gone)) ?? ''
  const [, effective = '0'] = /^CapEff:\s*([0-9a-f]+)$/m.exec(status) ?? []
  return theirs === ours && ((BigInt(`0x${effective}`) >> CAP_NET_ADMIN) & 1n) === 1n
}
