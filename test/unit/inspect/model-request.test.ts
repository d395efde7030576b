import { join } from 'node:path'
import { beforeEach, describe, expect, it } from 'vitest'
import { buildInfo, buildText } from '../../../src/base/build-info.ts'
import { EXIT_FAILED, EXIT_USAGE } from '../../../src/cli/io.ts'
import { modelFlags } from '../../../src/config/daemon-config.ts'
import { networkNamespace } from '../../../src/daemon/instance-lock.ts'
import { flagDifferences, readModelRequest } from '../../../src/inspect/model-request.ts'
import { FakeIo } from '../../support/fake-io.ts'
import { temporaryFolder } from '../../support/folder.ts'
import { configFrom } from '../../support/parse-flags.ts'
import { adminSocket } from './admin-socket.ts'

const VERSION = buildText(buildInfo())

let socket: string
let io: FakeIo

beforeEach(() => {
  socket = join(temporaryFolder(), 'admin.sock')
  io = new FakeIo()
})

/** A daemon that was started with these flags answers at the socket. */
async function daemon(argv: readonly string[], changes: object = {}): Promise<void> {
  const flags = modelFlags(configFrom(argv))
  const config = { version: VERSION, network: await networkNamespace(), flags, ...changes }
  await adminSocket(() => JSON.stringify(config), socket)
}

async function read(...argv: readonly string[]) {
  return await readModelRequest([`--admin-socket=${socket}`, ...argv], io, { command: 'plan', extra: [] })
}

describe('readModelRequest', () => {
  it('takes the configuration of the daemon that answers, without a flag', async () => {
    await daemon(['--proxy-mode=iptables', '--nodeport-addresses=10.0.0.0/8', '--hostname-override=node-7'])
    const request = await read()
    expect(request).toMatchObject({
      daemon: socket,
      config: { proxyMode: 'iptables', nodeName: 'node-7', nodePortAddresses: { primary: false } },
    })
    expect(io.stderr).toBe('')
  })

  it('takes flags that say what the daemon has, in other words', async () => {
    await daemon(['--cluster-cidr=10.0.0.0/8', '--nodeport-addresses=10.0.0.0/8,192.0.2.0/24'])
    const words = [
      '--cluster-cidr=10.9.9.9/8',
      '--nodeport-addresses=10.0.0.0/8',
      '--nodeport-addresses=192.0.2.0/24',
    ]
    expect(await read(...words, '--feature-gates=AllAlpha=false')).toMatchObject({ daemon: socket })
    expect(io.stderr).toBe('')
  })

  it('refuses a flag that contradicts the daemon, with both values', async () => {
    await daemon(['--cluster-cidr=10.244.0.0/16'])
    expect(await read('--cluster-cidr=10.0.0.0/8', '--proxy-mode=ipvs')).toBe(EXIT_USAGE)
    expect(io.stderr).toContain(
      `kprobe plan: --proxy-mode: is "ipvs"; the daemon at ${socket} has "nftables"; omit the flag, or give --source to use your own flags\n`,
    )
    expect(io.stderr).toContain(
      `--cluster-cidr: is "10.0.0.0/8"; the daemon at ${socket} has "10.244.0.0/16"; omit the flag`,
    )
  })

  it('uses its own flags with a source, and names the settings that differ', async () => {
    await daemon(['--proxy-mode=iptables'])
    expect(await read('--source=file:/objects')).toMatchObject({
      daemon: undefined,
      notices: expect.arrayContaining([
        `kprobe plan: --proxy-mode is "nftables"; the daemon at ${socket} has "iptables"`,
      ]),
      config: { proxyMode: 'nftables', source: { kind: 'file' } },
    })
  })

  it.each([[], ['--source=file:/objects']])(
    'fails when no daemon answers at the socket that was given: %j',
    async (...argv) => {
      expect(await read(...argv)).toBe(EXIT_FAILED)
      expect(io.stderr).toBe(`kprobe plan: no daemon answers at ${socket}\n`)
    },
  )

  it('says what it reads where neither a daemon nor a flag says it', async () => {
    const argv = ['--service-proxy-name=nobody-runs-this-one']
    const request = await readModelRequest(argv, io, { command: 'plan', extra: [] })
    const notice =
      'kprobe plan: no daemon answers at /run/kprobe/admin-nobody-runs-this-one.sock (--admin-socket names another socket); reading the API server'
    expect(request).toMatchObject({
      daemon: undefined,
      config: { source: { kind: 'kube' } },
      notices: [notice],
    })
  })

  it.each<[object, string]>([
    [
      { version: '0.0.1' },
      `the daemon is kprobe 0.0.1, this command is ${VERSION}; run the daemon's own, or give --source`,
    ],
    [
      { network: 'net:[1]' },
      'the daemon runs in another network namespace; give --source to read objects here',
    ],
    [{ flags: 1 }, '/config has no flags'],
    [{ version: undefined }, 'no daemon of kprobe answers: /config has no version'],
  ])('fails for a daemon that cannot be compared: %j', async (changes, message) => {
    await daemon([], changes)
    expect(await read()).toBe(EXIT_FAILED)
    expect(io.stderr).toBe(`kprobe plan: ${socket}: ${message}\n`)
  })
})

describe('flagDifferences', () => {
  it('names both values, and leaves out flags that only one side has', () => {
    const here = modelFlags(configFrom(['--cluster-cidr=10.0.0.0/8', '--proxy-mode=iptables']))
    expect(flagDifferences(here, modelFlags(configFrom(['--nodeport-addresses=0.0.0.0/0'])))).toEqual([
      { flag: 'proxy-mode', here: 'iptables', there: 'nftables' },
      { flag: 'cluster-cidr', here: '10.0.0.0/8', there: '' },
      { flag: 'nodeport-addresses', here: '', there: '0.0.0.0/0' },
    ])
  })
})
