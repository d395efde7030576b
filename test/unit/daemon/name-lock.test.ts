import { afterEach, describe, expect, it } from 'vitest'
import { type LockResult, takeLock } from '../../../src/daemon/network-lock.ts'

const held: LockResult[] = []

async function take(name: string, holder: string): Promise<LockResult> {
  const result = await takeLock(`kprobe-test/${process.pid}/${name}`, holder)
  held.push(result)
  return result
}

afterEach(async () => {
  for (const lock of held.splice(0)) if (lock.kind === 'held') await lock.release()
})

describe('takeLock', () => {
  it('gives a name to one holder, and says to others who has it', async () => {
    expect((await take('a', 'first')).kind).toBe('held')
    expect(await take('a', 'second')).toEqual({ kind: 'busy', holder: 'first' })
    expect((await take('b', 'third')).kind).toBe('held')
  })
})
