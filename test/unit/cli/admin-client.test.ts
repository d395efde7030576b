import { mkdtempSync, rmSync } from 'node:fs'
import { createServer } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { askDaemon } from '../../../src/cli/admin-client.ts'

const folder = mkdtempSync(join(tmpdir(), 'kprobe-admin-'))
const socket = join(folder, 'admin.sock')
const LONG = JSON.stringify('x'.repeat(17 * 1024 * 1024))
const server = createServer((_, response) => response.end(LONG))

beforeAll(() => new Promise<void>(listening => server.listen(socket, listening)))
afterAll(() => {
  server.closeAllConnections()
  server.close()
  rmSync(folder, { recursive: true })
})

it('reads long answers where there are any, and not at the pages of a few numbers', async () => {
  expect(await askDaemon(socket, '/services')).toMatchObject({ kind: 'answer' })
  for (const path of ['/config', '/status'])
    await expect(askDaemon(socket, path)).rejects.toThrow(`${socket}: the answer to ${path} is too long`)
})
