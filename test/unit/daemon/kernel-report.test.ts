import { expect, it } from 'vitest'
import { KernelReport } from '../../../src/daemon/cluster.ts'
import { EMPTY_SNAPSHOT } from '../../../src/model/snapshot.ts'
import type { KernelState, LocatedRefusal } from '../../../src/source/source.ts'

/** A report by hand: Snapshots by number, and what is said of the kernel. */
function begin() {
  const said: KernelState[] = []
  const refused: LocatedRefusal[] = []
  const intake = {
    complete: true,
    snapshot: EMPTY_SNAPSHOT,
    refused,
    stale: false,
    isStale: () => intake.stale,
  }
  const report = new KernelReport({
    intake,
    quarantined: () => [],
    proof: () => undefined,
    report: state => void said.push(state),
  })
  const at = (revision: number) => ({ Service: String(revision), EndpointSlice: String(revision) })
  return {
    intake,
    report,
    said,
    reached: (revision: number, number: number) => {
      intake.snapshot = { ...EMPTY_SNAPSHOT, number }
      report.reached(at(revision))
    },
    synced: (number: number) =>
      report.take({ kind: 'synced', number, reason: 'change', durationMs: 1, looked: false }),
    held: () => said.at(-1)?.held?.Service,
  }
}

it('holds a revision once the Snapshot that has it is in the kernel, and not before', () => {
  const { reached, synced, held, said } = begin()
  reached(10, 1)
  expect(said).toEqual([])
  synced(1)
  expect(held()).toBe('10')
  reached(11, 2)
  reached(12, 3)
  synced(2)
  expect(held()).toBe('11')
  synced(3)
  expect(held()).toBe('12')
  // A bookmark: the kernel holds all of it already.
  reached(20, 3)
  expect(held()).toBe('20')
})

it('holds the later revision late, where many Snapshots wait for the kernel', () => {
  const { reached, synced, held } = begin()
  for (let number = 1; number <= 500; number++) reached(1_000 + number, number)
  synced(40)
  expect(held()).toBe('1040')
  synced(499)
  expect(Number(held())).toBeLessThanOrEqual(1_499)
  synced(500)
  expect(held()).toBe('1500')
})

it('claims nothing of saved objects, nor of a source that is not complete', () => {
  const { intake, reached, synced, held } = begin()
  intake.stale = true
  reached(10, 1)
  synced(1)
  expect(held()).toBeUndefined()
  intake.stale = false
  intake.complete = false
  reached(11, 2)
  synced(2)
  expect(held()).toBeUndefined()
  intake.complete = true
  reached(12, 2)
  expect(held()).toBe('12')
})

it('says why the kernel holds less, until it holds it', () => {
  const { intake, report, reached, synced, said } = begin()
  reached(10, 1)
  synced(1)
  report.take({ kind: 'failed', error: new Error('EPERM'), retryMs: 1 })
  expect(said.at(-1)).toMatchObject({ held: { Service: '10' }, failure: 'EPERM' })
  const refusal = { object: 'Service shop/cart', field: 'metadata.name', value: '', reason: 'too long' }
  intake.refused.push({ location: 'services', refusal })
  synced(2)
  expect(said.at(-1)).toMatchObject({
    failure: '',
    lacking: [{ service: 'shop/cart', reason: 'metadata.name: too long' }],
    lackingCount: 1,
  })
})
