import fc from 'fast-check'
import { beforeEach, describe, expect, it } from 'vitest'
import { createLog } from '../../../src/base/log.ts'
import { whyNotInstance } from '../../../src/config/own-flags.ts'
import {
  asOnlyInstance,
  type InstanceWatch,
  instanceOf,
  lockInstance,
} from '../../../src/daemon/instance-lock.ts'
import type { LockResult, Rival } from '../../../src/daemon/network-lock.ts'
import { isDnsLabel } from '../../../src/model/fields.ts'
import { MODES, proxyOfTable } from '../../../src/modes/registry.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { eventually } from '../../support/patience.ts'

/** Two names with the same hash, as far as chains have it. */
const [ONE, SAME] = ['p5497', 'p8055']

let taken: Map<string, string>

beforeEach(() => {
  taken = new Map()
})

function take(name: string, holder: string): Promise<LockResult> {
  const other = taken.get(name)
  if (other !== undefined) return Promise.resolve({ kind: 'busy', holder: other })
  taken.set(name, holder)
  return Promise.resolve({ kind: 'held', release: () => Promise.resolve(void taken.delete(name)) })
}

async function lock(name: string | undefined, holder: string) {
  return await lockInstance(instanceOf(name), take, holder)
}

describe('the locks of a proxy', () => {
  it('are given back together', async () => {
    const held = await lock('mesh', 'pid 1')
    expect([...taken.keys()]).toEqual(['kprobe/kube-proxy/mesh', 'kprobe/chains/KP2MGKP'])
    if (held.kind === 'held') await held.release()
    expect(taken.size).toBe(0)
  })

  it('keep one away whose chains would have the same names, which then holds nothing', async () => {
    expect(instanceOf(ONE).objectsLock).toBe(instanceOf(SAME).objectsLock)
    await lock(ONE, 'pid 1')
    expect(await lock(SAME, 'pid 2')).toEqual({ kind: 'busy', holder: 'pid 1', of: 'chains' })
    expect([...taken.values()]).toEqual(['pid 1', 'pid 1'])
  })

  it('F135: name a rival by the first lock that has one, so that only one of two ends', async () => {
    const rivals = new Map([
      ['kprobe/kube-proxy/mesh', { holder: 'pid 2', stays: false }],
      ['kprobe/chains/KP2MGKP', { holder: 'pid 2', stays: true }],
    ])
    const taking = (name: string): Promise<LockResult> =>
      Promise.resolve({
        kind: 'held',
        release: () => Promise.resolve(),
        rival: () => Promise.resolve(rivals.get(name)),
      })
    const held = await lockInstance(instanceOf('mesh'), taking, 'pid 1')
    expect(held.kind === 'held' && (await held.rival?.())).toEqual({ holder: 'pid 2', stays: false })
    rivals.delete('kprobe/kube-proxy/mesh')
    expect(held.kind === 'held' && (await held.rival?.())).toEqual({ holder: 'pid 2', stays: true })
  })

  it('are not kept one by one when the other one cannot be had', async () => {
    const taking = (name: string, holder: string): Promise<LockResult> =>
      name.includes('chains') ? Promise.reject(new Error('EMFILE')) : take(name, holder)
    await expect(lockInstance(instanceOf('mesh'), taking, 'pid 1')).rejects.toThrow('EMFILE')
    expect(taken.size).toBe(0)
  })
})

describe('F135: a proxy whose lock another one may hold as well', () => {
  const clock = new FakeClock()
  let logs: string[]

  beforeEach(() => {
    logs = []
  })

  /** Repairs at these times, milliseconds; then the end, unless it came before. Gives the exit code. */
  async function run(rival: Rival | undefined, atMs: readonly number[]): Promise<number> {
    const stop = new AbortController()
    const options = {
      log: createLog({ format: 'json', verbosity: 0, destination: { write: text => logs.push(text) } }),
      clock,
      takeLock: () =>
        Promise.resolve<LockResult>({
          kind: 'held',
          release: () => Promise.resolve(),
          rival: () => Promise.resolve(rival),
        }),
      processId: 7,
      signal: stop.signal,
    }
    return await asOnlyInstance(undefined, options, async ({ signal, repaired }: InstanceWatch) => {
      let before = 0
      for (const each of atMs) {
        await clock.advance(each - before)
        before = each
        repaired()
      }
      for (let turn = 0; turn < 10; turn++) await Promise.resolve()
      if (!signal.aborted) stop.abort()
      await eventually(() => signal.aborted)
      return 0
    })
  }

  const OTHER = { holder: 'pid 4711', stays: true }
  const eight = [0, 1, 2, 3, 4, 5, 6, 7].map(second => second * 1_000)

  it('ends when its commits were overwritten eight times in a row, and says by whom', async () => {
    expect(await run(OTHER, eight)).toBe(1)
    expect(logs.join('')).toContain('"holder":"pid 4711"')
    expect(logs.join('')).toMatch(/another kprobe runs in this network namespace.*; stop that one, or give/)
  })

  it('goes on after fewer, after as many that lie apart, and when nobody answers any more', async () => {
    expect(await run(OTHER, eight.slice(1))).toBe(0)
    expect(
      await run(
        OTHER,
        eight.map(ms => ms * 61),
      ),
    ).toBe(0)
    expect(await run(undefined, eight)).toBe(0)
    expect(await run({ ...OTHER, stays: false }, eight)).toBe(0)
    expect(logs.join('')).not.toContain('another kprobe runs')
  })

  it('goes on for ever where it took the lock for itself, whoever overwrites it: kube-proxy, or an administrator', async () => {
    expect(await run(undefined, [...eight, ...eight.map(ms => ms + 8_000)])).toBe(0)
    expect(logs).toEqual([])
  })
})

/** Labels, among them what is near the names of our own tables. */
const names = fc
  .oneof(
    fc.constantFrom('a', 'ipvs-a', 'userspace-a', 'a-userspace', 'a-ipvs', 'x'.repeat(63)),
    fc.stringMatching(/^[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?$/),
  )
  .filter(name => isDnsLabel(name) && whyNotInstance(name, 'nftables') === undefined)

describe('names of a proxy', () => {
  it('are within what the kernel takes: 255 bytes for a table, 107 for a socket', () => {
    const longest = 'x'.repeat(63)
    for (const table of MODES.flatMap(mode => mode.tableName(longest) ?? []))
      expect(table.length).toBeLessThan(256)
    expect(instanceOf(longest).lock.length).toBeLessThan(107)
  })

  it('tell whose a table is', () => {
    fc.assert(
      fc.property(names, name => {
        for (const table of MODES.flatMap(mode => mode.tableName(name) ?? []))
          expect(proxyOfTable(table)).toBe(name)
      }),
    )
    expect(['kube-proxy', 'kube-proxy-ipvs', 'kube-proxy-userspace', 'nat'].map(proxyOfTable)).toEqual([
      undefined,
      undefined,
      undefined,
      undefined,
    ])
  })

  it('leave the unnamed one everything it had', () => {
    expect(tablesOf(undefined)).toEqual({
      nftables: 'kube-proxy',
      ipvs: 'kube-proxy-ipvs',
      iptables: undefined,
      userspace: 'kube-proxy-userspace',
    })
    expect(instanceOf(undefined)).toMatchObject({ lock: 'kprobe/kube-proxy', objectsLock: undefined })
    expect(tablesOf('mesh')).toEqual({
      nftables: 'kube-proxy-mesh',
      ipvs: undefined,
      iptables: undefined,
      userspace: 'kube-proxy-userspace.mesh',
    })
    expect(instanceOf('mesh')).toMatchObject({
      lock: 'kprobe/kube-proxy/mesh',
      objectsLock: 'kprobe/chains/KP2MGKP',
    })
  })
})

function tablesOf(name: string | undefined) {
  return Object.fromEntries(MODES.map(mode => [mode.name, mode.tableName(name)]))
}
