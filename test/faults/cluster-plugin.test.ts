import { existsSync, readFileSync, renameSync, writeFileSync } from 'node:fs'
import { beforeEach, expect, it } from 'vitest'
import { eventually } from '../support/patience.ts'
import { isRunning } from '../support/processes.ts'
import { Cluster } from './cluster.ts'
import { frontendNames } from './kernel.ts'
import { service } from './objects.ts'

const cluster = Cluster.ofEachTest()

beforeEach(() => cluster.open({ objects: [...service(1), ...service(2)] }))

/** The credential plugin of the kubeconfig, from now on. */
function plugin(lines: string): string {
  const command = cluster.file('plugin')
  // The kernel lets nobody write to a program that it is about to run: ETXTBSY.
  writeFileSync(`${command}.new`, `#!/bin/sh\n${lines}\n`, { mode: 0o700 })
  renameSync(`${command}.new`, command)
  return command
}

/** Prints a credential whose time is over at once: each request asks anew. */
const GIVES = `echo '${JSON.stringify({
  apiVersion: 'client.authentication.k8s.io/v1',
  kind: 'ExecCredential',
  status: { token: 't', expirationTimestamp: '2020-01-01T00:00:00Z' },
})}'`

it('F137: a credential plugin that prints without end does not end the daemon, and what is known stays', async () => {
  cluster.configure({ exec: { command: plugin(GIVES) } })
  const daemon = await cluster.running()
  plugin('exec yes')
  await cluster.replaceServer()
  // A request that is under way may have its credential already, and the log names only the first trouble of an outage.
  await eventually(() => {
    cluster.server.cut()
    daemon.kill('SIGUSR2')
    return daemon
      .said('state')
      .some(({ trouble }) => String(trouble).includes('it printed more than 1.0 MiB'))
  })
  cluster.put(...service(3))
  expect(frontendNames().size).toBe(2)
  plugin(GIVES)
  await cluster.converged()
  expect(await daemon.stop()).toMatchObject({ code: 0 })
})

it('F138: a credential plugin that hangs ends with the daemon, and so do its children', async () => {
  const command = plugin('sleep 600 &\necho $$ $! > "$0.pids"\nsleep 600')
  const pids = () => (existsSync(`${command}.pids`) ? readFileSync(`${command}.pids`, 'utf8') : '').trim()
  cluster.configure({ exec: { command } })
  const daemon = cluster.daemon()
  await eventually(() => pids().includes(' '))
  const started = pids().split(' ')
  expect(started.map(isRunning)).toEqual([true, true])
  expect(await daemon.stop()).toMatchObject({ code: 0 })
  await eventually(() => !started.some(isRunning))
})
