import { expect, it } from 'vitest'
import type { CommitResult, NftClient } from '../../../../src/kernel/nft/client.ts'
import { commitAsRead, deleteTable } from '../../../../src/modes/common/writers.ts'

/** A client whose commits end like this, one after the other. */
function clientOf(...outcomes: readonly CommitResult['outcome'][]): NftClient {
  const left = [...outcomes]
  const client: Pick<NftClient, 'generation' | 'commit'> = {
    generation: () => 7,
    commit: () => Promise.resolve({ outcome: left.shift(), failures: [] } as unknown as CommitResult),
  }
  return client as NftClient
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
