import { spawn } from 'node:child_process'
import { once } from 'node:events'
import {
  existsSync,
  linkSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { createConnection, createServer, type Server, type Socket } from 'node:net'
import { join } from 'node:path'
import { buildSync } from 'esbuild'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { listenAtUnixSocket } from '../../../src/base/unix-socket.ts'
import { leaveDeadSocket } from '../../support/dead-socket.ts'
import { temporaryFolder } from '../../support/folder.ts'

let folder = ''
const servers: Server[] = []
beforeEach(() => {
  folder = temporaryFolder()
})
afterEach(() => {
  for (const server of servers.splice(0)) server.close()
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

it('keeps a file that is not a socket', async () => {
  const path = join(folder, 's')
  writeFileSync(path, 'precious')
  await expect(listenAtUnixSocket(newServer(), path)).rejects.toThrow(
    'a file that is not a socket has this path',
  )
  expect(readFileSync(path, 'utf8')).toBe('precious')
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

it('F136: replaces a dead socket, whatever abstract names others listen at', async () => {
  const path = join(folder, 's')
  await leaveDeadSocket(path)
  const { dev, ino } = statSync(path)
  const stranger = newServer().listen({ path: `\0kprobe-dead-socket-${dev}-${ino}` })
  await once(stranger, 'listening')
  const remove = await listenAtUnixSocket(newServer(), path)
  await remove()
  expect(readdirSync(folder)).toEqual([])
})

it('replaces a dead socket that a process which died was about to replace, and waits for none that lives', async () => {
  const path = join(folder, 's')
  await leaveDeadSocket(path)
  const lock = join(folder, `.k${statSync(path).ino.toString(36)}`)
  mkdirSync(lock)
  const other = newServer().listen({ path: join(lock, 'abcdef') })
  await once(other, 'listening')
  await expect(listenAtUnixSocket(newServer(), path)).rejects.toThrow(/^another process /)
  linkSync(join(lock, 'abcdef'), join(lock, 'ghijkl'))
  await new Promise(done => other.close(done))
  expect(readdirSync(lock)).toEqual(['ghijkl'])
  const remove = await listenAtUnixSocket(newServer(), path)
  await remove()
  expect(readdirSync(folder)).toEqual([])
})

describe('of several that begin at once, one gets the place', () => {
  /** What somebody who connects is told: each server says its number. */
  async function whoAnswers(path: string): Promise<string> {
    const socket = createConnection({ path }).setEncoding('utf8')
    const [text] = await once(socket, 'data')
    socket.destroy()
    return text
  }

  function numbered(number: number): Server {
    const server = newServer()
    return server.on('connection', socket => socket.on('error', () => undefined).end(String(number)))
  }

  it.each(['free', 'a dead socket'])('within a process, where the place is %s', async place => {
    const path = join(folder, 's')
    for (let round = 0; round < 20; round++) {
      if (place !== 'free') await leaveDeadSocket(path)
      const numbers = [0, 1, 2, 3]
      const results = await Promise.allSettled(numbers.map(n => listenAtUnixSocket(numbered(n), path)))
      const winners = numbers.filter(n => results[n]?.status === 'fulfilled')
      expect(winners).toHaveLength(1)
      expect(await whoAnswers(path)).toBe(String(winners[0]))
      for (const result of results)
        if (result.status === 'fulfilled') await result.value()
        else expect(result.reason.message).toMatch(/^another process /)
      expect(readdirSync(folder)).toEqual([])
    }
  })

  it('of several processes, and a process that died is replaced', async () => {
    const path = join(folder, 's')
    const outfile = join(folder, 'listen.mjs')
    const contents = `
      import { createServer } from 'node:net'
      import { listenAtUnixSocket } from './src/base/unix-socket.ts'
      const server = createServer(socket => socket.on('error', () => undefined).end(String(process.pid)))
      console.log('ready')
      process.stdin.once('data', () =>
        listenAtUnixSocket(server, process.argv[2]).then(() => console.log('yes'), error => console.log(error.message)))
    `
    const stdin = { contents, resolveDir: process.cwd() }
    buildSync({ stdin, outfile, bundle: true, platform: 'node', format: 'esm', logLevel: 'silent' })
    // The second time there is what the winner of the first has left.
    for (let round = 0; round < 2; round++) {
      const stdio = ['pipe', 'pipe', 'inherit'] as const
      const children = [0, 1, 2].map(() => spawn(process.execPath, [outfile, path], { stdio: [...stdio] }))
      try {
        await Promise.all(children.map(child => once(child.stdout, 'data')))
        const answers = children.map(child =>
          once(child.stdout, 'data').then(([bytes]) => String(bytes).trim()),
        )
        for (const child of children) child.stdin.write('go')
        const said = await Promise.all(answers)
        expect(said.filter(text => text === 'yes')).toHaveLength(1)
        for (const text of said) expect(text).toMatch(/^(yes|another process .*)$/)
        expect(await whoAnswers(path)).toBe(String(children[said.indexOf('yes')]?.pid))
      } finally {
        for (const child of children) child.kill('SIGKILL')
        await Promise.all(children.map(child => child.exitCode ?? child.signalCode ?? once(child, 'exit')))
      }
    }
  })
})
