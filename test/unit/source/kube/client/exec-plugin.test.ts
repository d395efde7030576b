import { chmod, readFile } from 'node:fs/promises'
import { describe, expect, it } from 'vitest'
import { type Clock, systemClock } from '../../../../../src/base/clock.ts'
import { type ExecCredential, runExecPlugin } from '../../../../../src/source/kube/client/exec-plugin.ts'
import { FakeClock } from '../../../../support/fake-clock.ts'
import { eventually } from '../../../../support/patience.ts'
import { isRunning } from '../../../../support/processes.ts'
import { failureOf, loopback } from './loopback.ts'

const rig = loopback()
const SOON = AbortSignal.any([])

interface Given {
  readonly clock?: Clock
  readonly signal?: AbortSignal
}

/** Runs a plugin of these lines of shell. `$0.pids` is where it may leave process ids. */
async function run(
  lines: string,
  given: Given = {},
): Promise<{ ran: Promise<ExecCredential>; path: string }> {
  const { clock = systemClock, signal = SOON } = given
  const apiVersion = 'client.authentication.k8s.io/v1'
  const command = await rig().file('plugin', `#!/bin/sh\n${lines}\n`)
  await chmod(command, 0o700)
  const exec = { apiVersion, command, args: [], env: [], installHint: '', provideClusterInfo: false }
  const cluster = { server: 'https://a.test' }
  return {
    ran: runExecPlugin({ exec, where: 'here', cluster, clock, env: process.env, signal }),
    path: command,
  }
}

/** The process and its child are there, and the result waits until neither is. */
async function processesOf(path: string): Promise<() => Promise<unknown>> {
  const read = async () => (await readFile(`${path}.pids`, 'utf8').catch(() => '')).trim().split(/\s+/)
  await eventually(async () => (await read()).length === 2)
  const pids = (await read()).map(Number)
  expect(pids.every(isRunning)).toBe(true)
  return () => eventually(() => !pids.some(isRunning))
}

const HANGS = 'sleep 600 &\necho $$ $! > "$0.pids"\nsleep 600'
const GIVES = `echo '{"kind":"ExecCredential","status":{"token":"t"}}'`

describe('F137: a credential plugin that prints without end', () => {
  it.each(['exec yes', 'exec yes >&2', 'trap "" PIPE TERM; while :; do echo "$LINE"; done'])(
    '%s: is killed at 1 MiB',
    async lines => {
      const { ran, path } = await run(`LINE=$(printf %01000d 0)\n${lines}`)
      const error = await failureOf(ran)
      expect(error).toMatchObject({ kind: 'credentials' })
      expect(error.message).toBe(`here: ${path} was killed: it printed more than 1.0 MiB`)
    },
  )

  it('may print almost as much', async () => {
    const token = 'x'.repeat(1_000_000)
    const { ran } = await run(
      `printf '{"status":{"token":"'\nhead -c ${token.length} /dev/zero | tr '\\0' x\necho '"}}'`,
    )
    expect((await ran).token).toBe(token)
  })
})

describe('F138: a credential plugin that hangs', () => {
  it('is killed after 30 s with all that it started', async () => {
    const clock = new FakeClock()
    const { ran, path } = await run(HANGS, { clock })
    const failure = failureOf(ran)
    const gone = await processesOf(path)
    await clock.advance(30_000)
    expect((await failure).message).toBe(`here: ${path} was killed: it was still running after 30 s`)
    await gone()
  })

  it('is killed with all that it started when the client is closed', async () => {
    const stop = new AbortController()
    const { ran, path } = await run(HANGS, { signal: stop.signal })
    const failure = failureOf(ran)
    const gone = await processesOf(path)
    stop.abort()
    expect((await failure).message).toContain('was killed: the client was closed')
    await gone()
  })
})

describe('F138: a credential plugin that ends', () => {
  it.each([
    ['fails', 'exit 1'],
    ['gives a credential', GIVES],
  ])('leaves no child behind when it %s', async (_, last) => {
    const { ran, path } = await run(`sleep 600 >/dev/null 2>&1 &\necho $! > "$0.pids"\n${last}`)
    await ran.catch(() => undefined)
    const child = Number(await readFile(`${path}.pids`, 'utf8'))
    await eventually(() => !isRunning(child))
  })
})

describe('a credential plugin', () => {
  it('is believed when it has ended, although a process of another group holds its output', async () => {
    const { ran, path } = await run(`setsid sleep 600 &\necho $! > "$0.pids"\n${GIVES}`)
    expect((await ran).token).toBe('t')
    process.kill(Number(await readFile(`${path}.pids`, 'utf8')), 'SIGKILL')
  })

  it('leaves no listener of the process behind', async () => {
    const before = process.listenerCount('exit')
    await (await run(GIVES)).ran
    expect(process.listenerCount('exit')).toBe(before)
  })
})
