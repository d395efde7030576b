import { describe, expect, it } from 'vitest'
import { type Clock, systemClock } from '../../../src/base/clock.ts'
import type { LockResult, Rival, TakeLock } from '../../../src/base/instance-lock.ts'
import { maskOf, membersOf, networkLock } from '../../../src/daemon/network-lock.ts'
import type { UnixListener } from '../../../src/kernel/socket/listeners.ts'
import { errnoNumber } from '../../../src/netlink/errors.ts'
import { SystemError } from '../../../src/netlink/transport.ts'

const NOBODY = 65_534
const HEAD = 'sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n'

interface Name {
  readonly holder: string
  readonly uid: number
  /** Of its process; undefined where that is not to be seen. */
  readonly isAdmin: boolean | undefined
}

/** Netlink sockets, abstract names and their users, as one network namespace has them. */
class Namespace {
  readonly sockets = new Map<number, number>()
  readonly names = new Map<string, Name>()
  #next = 100

  list(): string {
    const lines = [...this.sockets].map(
      ([portId, groups]) =>
        `0000000000000000 12  ${portId} ${groups.toString(16).padStart(8, '0')} 0 0 0 2 0 ${portId + 1_000}`,
    )
    return `${HEAD}${lines.join('\n')}\n`
  }

  open() {
    const portId = this.#next++
    this.sockets.set(portId, 0)
    return {
      portId,
      join: (group: number) => {
        this.sockets.set(portId, ((this.sockets.get(portId) ?? 0) | (1 << (group - 1))) >>> 0)
      },
      close: () => {
        this.sockets.delete(portId)
        return Promise.resolve()
      },
    }
  }

  readonly takeName: TakeLock = (form, holder) => {
    const other = this.names.get(form)
    if (other !== undefined) return Promise.resolve({ kind: 'busy', holder: other.holder })
    this.names.set(form, { holder, uid: 0, isAdmin: true })
    const release = () => Promise.resolve(void this.names.delete(form))
    return Promise.resolve({ kind: 'held', release })
  }

  /** The number of a socket is its place among the names. */
  listeners(name: string): readonly UnixListener[] {
    return [...this.names].flatMap(([form, { uid }], inode) =>
      form.replace(/\0+$/, '') === name ? [{ uid, inode }] : [],
    )
  }

  isAdmin(inode: number): boolean | undefined {
    return [...this.names.values()][inode]?.isAdmin
  }
}

interface Change {
  readonly openSocket?: () => ReturnType<Namespace['open']>
  readonly listSockets?: () => Promise<string>
  readonly listenersAt?: () => Promise<undefined>
  readonly takeName?: TakeLock
}

function lockIn(namespace: Namespace, change: Change = {}): TakeLock {
  return networkLock({
    clock: IMPATIENT,
    random: () => 0,
    openSocket: () => namespace.open(),
    listSockets: () => Promise.resolve(namespace.list()),
    listenersAt: name => Promise.resolve(namespace.listeners(name)),
    ownerIsAdmin: inode => Promise.resolve(namespace.isAdmin(inode)),
    takeName: namespace.takeName,
    trusted: [0],
    ...change,
  })
}

/** Its pauses are as short as they can be. */
const IMPATIENT: Clock = {
  ...systemClock,
  after(_, run) {
    const soon = setImmediate(run)
    return () => clearImmediate(soon)
  },
}

const NAME = 'kprobe-unit/x'
const PADDED = NAME.padEnd(107, '\0')

async function release(lock: LockResult): Promise<void> {
  if (lock.kind === 'held') await lock.release()
}

async function rivalOf(lock: LockResult): Promise<Rival | undefined> {
  return lock.kind === 'held' ? await lock.rival?.() : undefined
}

describe('networkLock', () => {
  it('keeps others out until it is released, and leaves nothing', async () => {
    const namespace = new Namespace()
    const lock = await lockIn(namespace)(NAME, 'pid 7')
    expect(lock.kind).toBe('held')
    expect(await lockIn(namespace)(NAME, 'pid 8')).toMatchObject({ kind: 'busy', holder: 'pid 100' })
    expect((await lockIn(namespace)('kprobe-unit/y', 'pid 9')).kind).toBe('held')
    await release(lock)
    expect((await lockIn(namespace)(NAME, 'pid 8')).kind).toBe('held')
    expect(namespace.sockets.size).toBe(2)
  })

  it('has both forms of the abstract name, so that earlier versions stay away in each runtime', async () => {
    const namespace = new Namespace()
    await lockIn(namespace)(NAME, 'pid 7')
    expect([...namespace.names.keys()]).toEqual([PADDED, NAME])
  })

  it('withdraws when another shows itself at the same moment, and takes the lock when that one has left', async () => {
    const namespace = new Namespace()
    let lists = 0
    const listSockets = () => {
      lists++
      if (lists === 2) namespace.sockets.set(1, maskOf(NAME))
      if (lists === 3) namespace.sockets.delete(1)
      return Promise.resolve(namespace.list())
    }
    expect((await lockIn(namespace, { listSockets })(NAME, 'pid 7')).kind).toBe('held')
    expect(namespace.sockets.size).toBe(1)
  })

  it('F136: takes the lock although user 65534 listens at the abstract name, in either form', async () => {
    for (const form of [NAME, PADDED]) {
      const namespace = new Namespace()
      namespace.names.set(form, { holder: 'pid 1', uid: NOBODY, isAdmin: undefined })
      const lock = await lockIn(namespace)(NAME, 'pid 7')
      expect(lock).toMatchObject({ kind: 'held' })
      expect(await rivalOf(lock)).toBeUndefined()
      expect(lock).toMatchObject({ isDoubted: false })
    }
  })

  it('F135: respects an earlier version of kprobe, which has the abstract name alone, in either form', async () => {
    for (const form of [NAME, PADDED]) {
      const namespace = new Namespace()
      namespace.names.set(form, { holder: 'pid 1', uid: 0, isAdmin: true })
      expect((await lockIn(namespace)(NAME, 'pid 7')).kind).toBe('busy')
      expect(namespace.sockets.size).toBe(0)
      expect([...namespace.names.keys()]).toEqual([form])
    }
  })

  it('F136: takes the lock although a process of root without CAP_NET_ADMIN listens at the abstract name', async () => {
    for (const form of [NAME, PADDED]) {
      const namespace = new Namespace()
      namespace.names.set(form, { holder: 'pid 1', uid: 0, isAdmin: false })
      const lock = await lockIn(namespace)(NAME, 'pid 7')
      expect(lock).toMatchObject({ kind: 'held', isDoubted: false })
      expect(await rivalOf(lock)).toBeUndefined()
    }
  })

  it('F135: takes the lock in doubt where root listens and its process is not to be seen, and knows an earlier rival then', async () => {
    const namespace = new Namespace()
    namespace.names.set(NAME, { holder: 'pid 1', uid: 0, isAdmin: undefined })
    const lock = await lockIn(namespace)(NAME, 'pid 7')
    expect(lock).toMatchObject({ kind: 'held', isDoubted: true })
    expect(await rivalOf(lock)).toMatchObject({ isEarlier: true })
    namespace.names.delete(NAME)
    expect(await rivalOf(lock)).toBeUndefined()
  })

  it('F135: takes the lock in doubt when the kernel does not say whose the abstract name is', async () => {
    const namespace = new Namespace()
    namespace.names.set(NAME, { holder: 'pid 1', uid: 0, isAdmin: true })
    const lock = await lockIn(namespace, { listenersAt: () => Promise.resolve(undefined) })(NAME, 'pid 7')
    expect(lock).toMatchObject({ kind: 'held', isDoubted: true })
  })

  it('F135: knows a rival that came later, where a runtime pads names and that of an earlier version does not', async () => {
    const namespace = new Namespace()
    const takeName: TakeLock = (form, holder) => namespace.takeName(form.padEnd(107, '\0'), holder)
    const lock = await lockIn(namespace, { takeName })(NAME, 'pid 7')
    expect(lock).toMatchObject({ kind: 'held', isDoubted: false })
    expect(await rivalOf(lock)).toBeUndefined()
    expect((await namespace.takeName(NAME, 'pid 8')).kind).toBe('held')
    expect(await rivalOf(lock)).toMatchObject({ isEarlier: false })
  })

  it('is the abstract name alone without CAP_NET_ADMIN or /proc, whoever has it', async () => {
    const refused = () => {
      throw new SystemError('setsockopt', errnoNumber('EPERM'), 'EPERM')
    }
    const missing = () => Promise.reject(Object.assign(new Error('no /proc'), { code: 'ENOENT' }))
    const changes: readonly ((namespace: Namespace) => Change)[] = [
      namespace => ({ openSocket: () => ({ ...namespace.open(), join: refused }) }),
      () => ({ listSockets: missing }),
    ]
    for (const change of changes) {
      const namespace = new Namespace()
      expect((await lockIn(namespace, change(namespace))(NAME, 'pid 7')).kind).toBe('held')
      expect((await lockIn(namespace, change(namespace))(NAME, 'pid 8')).kind).toBe('busy')
    }
  })
})

describe('membersOf', () => {
  const mask = maskOf('kprobe/kube-proxy')

  it('counts sockets of NETLINK_NETFILTER that are in exactly the groups of the name', () => {
    const line = (protocol: number, groups: number, inode: number) =>
      `00000000264f680e ${protocol}  21075      ${(groups >>> 0).toString(16).padStart(8, '0')} 0 0 0 2 0 ${inode}       `
    const lowest = mask & -mask
    const text = [
      HEAD.trim(),
      line(12, mask, 1),
      // Groups that have a meaning do not count: a subscriber may be in them, too.
      line(12, mask | 0x40, 2),
      line(16, mask, 3),
      line(12, mask & ~lowest, 4),
      line(12, 0x40, 5),
    ].join('\n')
    expect(membersOf(text, mask).map(({ inode }) => inode)).toEqual(['1', '2'])
    expect(membersOf('', mask)).toEqual([])
  })

  it('gives names their own groups, all of them without a meaning', () => {
    const names = ['kprobe/kube-proxy', 'kprobe/kube-proxy/mesh', 'kprobe/chains/KP2MGKP', 'kprobe/plane/x']
    const masks = names.map(maskOf)
    expect(new Set(masks).size).toBe(names.length)
    for (const each of masks) expect(each & 0xfff).toBe(0)
    for (const each of masks) expect(each).toBeGreaterThan(0)
  })
})
