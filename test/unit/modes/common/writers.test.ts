import { expect, it } from 'vitest'
import type { CommitResult, NftClient } from '../../../../src/kernel/nft/client.ts'
import { commitAsRead, deleteTable } from '../../../../src/modes/common/writers.ts'

/** A client whose commits end like this, one after the other, and which notes the generation that each of them names. */
function clientOf(...outcomes: readonly CommitResult['outcome'][]): NftClient & { named: unknown[] } {
  const left = [...outcomes]
  const named: unknown[] = []
  let generation = 6
  const client: Pick<NftClient, 'generation' | 'commit'> = {
    generation: () => ++generation,
    commit(_, options) {
      named.push(options?.generation)
      return Promise.resolve({ outcome: left.shift() ?? 'stale', failures: [] } as unknown as CommitResult)
    },
  }
  return { ...(client as NftClient), named }
}

const TRANSACTION = [deleteTable({ family: 'ip', name: 'ours' })]

it('reads the kernel back after a commit of unknown outcome, and gives what that commit was to remove', async () => {
  const reads = [
    { value: 'both', transaction: TRANSACTION },
    { value: 'none', transaction: [] },
  ]
  const read = () => Promise.resolve(reads.shift() ?? { value: 'too often', transaction: [] })
  expect(await commitAsRead(clientOf('unknown'), read)).toBe('both')
})

it('commits again when the one of unknown outcome did not happen, and says so when none is certain', async () => {
  const read = () => Promise.resolve({ value: 'both', transaction: TRANSACTION })
  expect(await commitAsRead(clientOf('unknown', 'committed'), read)).toBe('both')
  await expect(commitAsRead(clientOf('refused'), read)).rejects.toThrow('clean up: the commit is refused')
})

it('names the generation from before each read, and reads again when another program committed in between', async () => {
  const client = clientOf('stale', 'committed')
  let reads = 0
  expect(await commitAsRead(client, async () => ({ value: ++reads, transaction: TRANSACTION }))).toBe(2)
  expect(client.named).toEqual([7, 8])
  await expect(
    commitAsRead(client, async () => ({ value: ++reads, transaction: TRANSACTION })),
  ).rejects.toThrow('clean up: gave up after 16 tries')
  expect(reads).toBe(18)
})
