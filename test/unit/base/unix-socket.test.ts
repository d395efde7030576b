import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync, rmSync } from 'node:fs'
import { createConnection, createServer, type Server, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { listenAtUnixSocket } from '../../../src/base/unix-socket.ts'

let folder = ''
const servers: Server[] = []
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'unix-socket-'))
})
afterEach(() => {
  for (const server of servers.splice(0)) server.close()
  rmSync(folder, { recursive: true, force: true })
})

function newServer(): Server {
  const server = createServer()
  servers.push(server)
  return server
}

it('removes its own file, and not the one that another has put there since', async () => {
  const path = join(folder, 's')
  const removeFirst = await listenAtUnixSocket(newServer(), path)
  rmSync(path)
  const removeSecond = await listenAtUnixSocket(newServer(), path)
  await removeFirst()
  expect(existsSync(path)).toBe(true)
  await removeSecond()
  expect(existsSync(path)).toBe(false)
  await removeSecond()
})

it('takes no socket from a process that is too busy to answer', async () => {
  const path = join(folder, 's')
  const busy = `require('node:net').createServer().listen({ path: ${JSON.stringify(path)}, backlog: 1 }, () => {
    process.stdout.write('listening', () => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 20_000))
  })`
  const child = spawn(process.execPath, ['-e', busy], { stdio: ['ignore', 'pipe', 'inherit'] })
  const waiting: Socket[] = []
  try {
    await once(child.stdout, 'data')
    // Until its queue is full: the kernel says EAGAIN then.
    for (let refused = false; !refused && waiting.length < 10; ) {
      const socket = createConnection({ path })
      waiting.push(socket)
      refused = await new Promise<boolean>(resolve => {
        socket.once('connect', () => resolve(false))
        socket.once('error', () => resolve(true))
      })
    }
    await expect(listenAtUnixSocket(newServer(), path)).rejects.toThrow('another process answers')
  } finally {
    for (const socket of waiting) socket.destroy()
    child.kill('SIGKILL')
  }
})
