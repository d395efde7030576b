import { spawnSync } from 'node:child_process'
import { join } from 'node:path'
import { afterEach, expect, it } from 'vitest'
import { type Ended, runInProcess, tool } from '../support/command.ts'
import { COMMAND, Daemons, EXAMPLES } from '../support/daemon.ts'

const daemons = new Daemons()
afterEach(async () => {
  await daemons.end()
  await runInProcess(['cleanup', '--force'])
  spawnSync('ipset', ['destroy', 'before'])
})

/** Runs a command over a bundle in a network namespace of its own, which has the ipset modules of the guest. */
function replay(path: string, ...args: readonly string[]): Ended {
  const argv = ['-n', process.execPath, COMMAND, 'replay', path, '--', ...args]
  const { status, stdout, stderr } = spawnSync('unshare', argv, { encoding: 'utf8' })
  return { code: status, out: stdout, err: stderr }
}

it('a bundle of IPVS mode gives the same why and dump elsewhere', async () => {
  // The numbers by which rules refer to sets begin behind this one, and have a gap.
  tool('ipset', 'create', 'before', 'hash:ip')
  const folder = daemons.folder()
  const socket = `--admin-socket=${join(folder, 'admin.sock')}`
  const args = ['--proxy-mode=ipvs', socket, '--hostname-override=example-node']
  await daemons.running({ source: EXAMPLES, args })
  tool('ipset', 'destroy', 'before')
  const path = join(folder, 'bundle.tar.gz')
  expect((await runInProcess(['debug', 'bundle', `--output=${path}`, socket])).code).toBe(0)
  const commands = [
    ['why', '--from=203.0.113.9', '--to=10.96.1.1:80'],
    ['dump', 'all', '-o', 'wide'],
  ]
  for (const command of commands) {
    const here = await runInProcess([...command, socket])
    expect(here.code).toBe(0)
    expect(replay(path, ...command), command.join(' ')).toEqual(here)
  }
})
