import { spawnSync } from 'node:child_process'
import { existsSync, statSync } from 'node:fs'
import { afterEach, describe, expect, it } from 'vitest'
import { COMMAND, type Daemon, Daemons, EXAMPLE_FLAGS, EXAMPLES } from '../support/daemon.ts'
import { patientMs } from '../support/patience.ts'

const daemons = new Daemons()
const [, HOST = ''] = EXAMPLE_FLAGS

afterEach(async () => {
  await daemons.end()
  spawnSync('nft', ['flush', 'ruleset'])
})

/** A daemon without --admin-socket, with a /run of its own. */
function startWith(mount: string, ...args: readonly string[]): Daemon {
  return daemons.start({
    source: EXAMPLES,
    atDefaultSocket: true,
    args: [HOST, ...args],
    wrapper: [
      'unshare',
      '-m',
      'sh',
      '-c',
      `umask 0 && mount -t tmpfs ${mount} tmpfs /run && exec "$@"`,
      'sh',
    ],
  })
}

function within(daemon: Daemon, ...argv: readonly string[]) {
  const args = ['-t', String(daemon.pid), '-m', process.execPath, COMMAND, ...argv]
  const { status, stdout, stderr } = spawnSync('nsenter', args, {
    encoding: 'utf8',
    timeout: patientMs(60_000),
  })
  return { code: status, out: stdout, err: stderr }
}

const socketOf = ({ pid }: Daemon, name = 'admin') => `/proc/${pid}/root/run/kprobe/${name}.sock`

describe('the admin socket that no flag names', () => {
  it('is made with its folder, for root alone, and the commands find it', async () => {
    const daemon = startWith('-o rw')
    await daemon.synced()
    await daemon.until(() => existsSync(socketOf(daemon)))
    expect(statSync(socketOf(daemon)).mode & 0o777).toBe(0o600)
    expect(statSync(`/proc/${daemon.pid}/root/run/kprobe`).mode & 0o777).toBe(0o755)
    const agreed = { code: 0, err: '', out: expect.stringContaining('agree') }
    expect(within(daemon, 'verify')).toEqual(agreed)
    expect(within(daemon, 'plan', '--summary')).toMatchObject({ code: 0, err: '' })
    expect(within(daemon, 'why', '--from=127.0.0.1', '--to=shop/cart')).toMatchObject({ err: '' })
    await daemon.stop()
  })

  it('has the name of a named proxy', async () => {
    const daemon = startWith('-o rw', '--service-proxy-name=red')
    await daemon.until(() => existsSync(socketOf(daemon, 'admin-red')))
    expect(existsSync(socketOf(daemon))).toBe(false)
  })

  it('is missing with one warning where /run cannot be written, and the daemon serves', async () => {
    const daemon = startWith('-o ro')
    await daemon.synced()
    const [warning] = await daemon.logged('admin: cannot listen on /run/kprobe/admin.sock')
    expect(warning).toMatchObject({ level: 'warn', msg: expect.stringContaining('--admin-socket=') })
    expect(JSON.stringify(warning)).toContain('EROFS')
  })

  it('is not made with --admin-socket=, nor by --once', async () => {
    const daemon = startWith('-o rw', '--admin-socket=')
    await daemon.synced()
    await daemon.caughtUp()
    expect(existsSync(`/proc/${daemon.pid}/root/run/kprobe`)).toBe(false)
    await daemon.stop()
    const once = startWith('-o rw', '--once')
    expect(await once.ended()).toMatchObject({ code: 0 })
    expect(once.said('admin: ')).toEqual([])
  })
})
