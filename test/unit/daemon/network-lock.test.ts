import { describe, expect, it } from 'vitest'
import { type Clock, systemClock } from '../../../src/base/clock.ts'
import {
  type LockResult,
  maskOf,
  membersOf,
  networkLock,
  type TakeLock,
  takeLock,
} from '../../../src/daemon/network-lock.ts'
import { errnoNumber } from '../../../src/netlink/errors.ts'
import { SystemError } from '../../../src/netlink/transport.ts'

const HEAD = 'sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode\n'

/** Netlink sockets and abstract names, as one network namespace has them. */
class Namespace {
  readonly sockets = new Map<number, number>()
  readonly names = new Map<string, string>()
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

  readonly takeName: TakeLock = (name, holder) => {
    const other = this.names.get(name)
    if (other !== undefined) return Promise.resolve({ kind: 'busy', holder: other })
    this.names.set(name, holder)
    const release = () => Promise.resolve(void this.names.delete(name))
    return Promise.resolve({ kind: 'held', release })
  }
}

interface Change {
  readonly openSocket?: () => ReturnType<Namespace['open']>
  readonly listSockets?: () => Promise<string>
}

function lockIn(namespace: Namespace, change: Change = {}): TakeLock {
  return networkLock({
    clock: IMPATIENT,
    random: () => 0,
    openSocket: () => namespace.open(),
    listSockets: () => Promise.resolve(namespace.list()),
    takeName: namespace.takeName,
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

async function release(lock: LockResult): Promise<void> {
  if (lock.kind === 'held') await lock.release()
}

describe('networkLock', () => {
  it('keeps others out until it is released, and leaves nothing', async () => {
    const namespace = new Namespace()
    const lock = await lockIn(namespace)(NAME, 'pid 7')
    expect(lock.kind).toBe('held')
    expect(await lockIn(namespace)(NAME, 'pid 8')).toMatchObject({ kind: 'busy', holder: 'pid 100' })
    expect((await lockIn(namespace)('kprobe-unit/y', 'pid 9')).kind).toBe('held')
    await release(lock)
    expect([...namespace.names.keys()]).toEqual(['kprobe-unit/y'])
    expect((await lockIn(namespace)(NAME, 'pid 8')).kind).toBe('held')
    expect(namespace.sockets.size).toBe(2)
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

  it('F136: takes the lock although another process listens at the abstract name', async () => {
    const namespace = new Namespace()
    namespace.names.set(NAME, 'pid 1')
    const lock = await lockIn(namespace)(NAME, 'pid 7')
    expect(lock.kind).toBe('held')
    expect(await lockIn(namespace)(NAME, 'pid 8')).toEqual({ kind: 'busy', holder: 'pid 100' })
    await release(lock)
    expect([...namespace.names.values()]).toEqual(['pid 1'])
  })

  it('F135: of two that a list has missed, both know which one stays', async () => {
    const namespace = new Namespace()
    let left = 4
    const listSockets = () => Promise.resolve(left-- > 0 ? HEAD : namespace.list())
    const locks = [
      await lockIn(namespace, { listSockets })(NAME, 'pid 100'),
      await lockIn(namespace, { listSockets })(NAME, 'pid 101'),
    ]
    const rivals = locks.map(lock => (lock.kind === 'held' ? lock.rival?.() : 'busy'))
    expect(await Promise.all(rivals)).toEqual([
      { holder: 'pid 101', stays: false },
      { holder: 'pid 100', stays: true },
    ])
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

it('takeLock gives a name to one holder, and says to others who has it', async () => {
  const take = (name: string, holder: string) => takeLock(`kprobe-test/${process.pid}/${name}`, holder)
  const locks = [await take('a', 'first'), await take('b', 'third')]
  expect(locks.map(({ kind }) => kind)).toEqual(['held', 'held'])
  expect(await take('a', 'second')).toEqual({ kind: 'busy', holder: 'first' })
  for (const lock of locks) await release(lock)
})
