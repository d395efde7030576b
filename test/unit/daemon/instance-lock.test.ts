import { beforeEach, describe, expect, it } from 'vitest'
import type { LockResult } from '../../../src/base/instance-lock.ts'
import { instanceOf } from '../../../src/daemon/instance.ts'
import { lockInstance } from '../../../src/daemon/instance-lock.ts'

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

  it('keep another one of the same name away', async () => {
    await lock('mesh', 'pid 1')
    expect(await lock('mesh', 'pid 2')).toEqual({ kind: 'busy', holder: 'pid 1', of: 'name' })
    expect(await lock('other', 'pid 3')).toMatchObject({ kind: 'held' })
    expect(await lock(undefined, 'pid 4')).toMatchObject({ kind: 'held' })
  })

  it('keep one away whose chains would have the same names, which then holds nothing', async () => {
    expect(instanceOf(ONE).chains.prefix).toBe(instanceOf(SAME).chains.prefix)
    await lock(ONE, 'pid 1')
    expect(await lock(SAME, 'pid 2')).toEqual({ kind: 'busy', holder: 'pid 1', of: 'chains' })
    expect([...taken.values()]).toEqual(['pid 1', 'pid 1'])
  })

  it('are not kept one by one when the other one cannot be had', async () => {
    const taking = (name: string, holder: string): Promise<LockResult> =>
      name.includes('chains') ? Promise.reject(new Error('EMFILE')) : take(name, holder)
    await expect(lockInstance(instanceOf('mesh'), taking, 'pid 1')).rejects.toThrow('EMFILE')
    expect(taken.size).toBe(0)
  })
})
