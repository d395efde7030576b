import { expect, it } from 'vitest'
import { withObjects } from '../../../../src/inspect/bundle/debug.ts'

function bundleOf(events: readonly unknown[]) {
  const data = Buffer.from(JSON.stringify({ number: 1, events }))
  return withObjects({
    facts: { kprobe: 'test' },
    files: [{ name: 'snapshot.json', about: '', data }],
    missing: [],
  })
}

it('a bundle has the objects of the daemon as manifests, before all else', async () => {
  const { files, missing } = await bundleOf([{ kind: 'ServiceCIDR', key: 'kubernetes', value: [] }])
  expect(files.map(({ name }) => name)).toEqual(['objects.json', 'snapshot.json'])
  expect(missing).toEqual([])
})

it('a bundle of a daemon of another version lacks the manifests alone', async () => {
  const { files, missing } = await bundleOf([{ kind: 'Gateway', key: 'shop/cart' }])
  expect(files.map(({ name }) => name)).toEqual(['snapshot.json'])
  expect(missing).toEqual([
    { name: 'objects.json', why: expect.stringContaining('another version of kprobe') },
  ])
})
