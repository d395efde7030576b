import { execFileSync } from 'node:child_process'
import { afterEach, describe, expect, it } from 'vitest'
import { type Ended, runInProcess } from '../support/command.ts'
import { EXAMPLES } from '../support/daemon.ts'

/* What `dump`, `explain`, `why` and `doctor` say of the state of IPVS mode that somebody has damaged. */

const NODE = '--hostname-override=example-node'
const SOURCE = [`--source=file:${EXAMPLES}`, NODE, '--proxy-mode=ipvs']
const CART = ['--from', '203.0.113.9', '--to', '10.96.1.1:80']

const kprobe = (...args: readonly string[]): Promise<Ended> => runInProcess(args)
const tool = (line: string): string => {
  const [name = '', ...args] = line.split(' ')
  return execFileSync(name, args, { encoding: 'utf8' })
}

afterEach(() => kprobe('cleanup', '--force'))

const DAMAGES: readonly (readonly [command: string, reason: string])[] = [
  ['ip link del kube-ipvs0', 'NOT REACHED from prerouting: 10.96.1.1 is not an address of kube-ipvs0'],
  [
    'ipvsadm -D -t 10.96.1.1:80',
    'NOT REACHED from prerouting and output: there is no virtual server TCP 10.96.1.1:80',
  ],
]

describe.each(DAMAGES)('IPVS mode after `%s`', (command, reason) => {
  it('says that the Service is not reached, why, and fails', async () => {
    expect((await kprobe('run', '--once', ...SOURCE)).code).toBe(0)
    expect(await kprobe('dump')).toMatchObject({ code: 0 })
    expect(await kprobe('explain', ...SOURCE, ...CART)).toMatchObject({ code: 0 })
    tool(command)
    const dumped = await kprobe('dump')
    const explained = await kprobe('explain', ...SOURCE, ...CART)
    const answered = await kprobe('why', ...SOURCE, ...CART)
    const examined = await kprobe('doctor', ...SOURCE)
    expect(dumped.out).toContain(reason)
    expect(dumped.code).toBe(1)
    expect(explained.code).toBe(3)
    expect(answered.code).toBe(3)
    expect(answered.out).toMatch(/^rules damaged: /)
    expect(answered.out.split('\n')[0]).toContain(reason.replace(/^[^:]*: /, ''))
    expect(examined.code).toBe(3)
  })
})

it('keeps all Services reached where only the rules beside IPVS are gone, and names them', async () => {
  expect((await kprobe('run', '--once', ...SOURCE)).code).toBe(0)
  tool('nft flush chain ip kube-proxy-ipvs services')
  expect(await kprobe('dump')).toMatchObject({
    code: 1,
    err: expect.stringContaining('chain ip kube-proxy-ipvs services is empty'),
  })
})
