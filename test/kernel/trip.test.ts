import { execFile } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'
import { expect, test } from 'vitest'

const RUN = fileURLToPath(new URL('../trip/run.mjs', import.meta.url))

test('one EndpointSlice event passes at most 57 files from the socket to sendmsg', async () => {
  // Rejects when there are more.
  const { stdout } = await promisify(execFile)(process.execPath, [RUN, 'nftables'])
  expect(Number(/^(\d+) files, \d+ lines/m.exec(stdout)?.[1])).toBeGreaterThan(30)
  expect(stdout).toContain('src/modes/nftables/render.ts')
  expect(stdout).toContain('src/netlink/native.ts')
})
