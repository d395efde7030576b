import { execFileSync } from 'node:child_process'
import { readdirSync, renameSync, writeFileSync } from 'node:fs'
import { afterEach, beforeAll, describe, expect, it } from 'vitest'
import { type Ended, runInProcess } from '../support/command.ts'
import { dual } from '../support/objects.ts'

/* What a kernel that lacks a part of IPv6 serves, and what the commands say of it. */

const FILE = '/tmp/families.json'
const kprobe = (...args: readonly string[]): Promise<Ended> => runInProcess(args)
const tool = (line: string): string => {
  const [name = '', ...args] = line.split(' ')
  return execFileSync(name, args, { encoding: 'utf8' })
}

beforeAll(() => writeFileSync(FILE, JSON.stringify({ kind: 'List', items: [...dual(1), ...dual(2)] })))
afterEach(() => kprobe('cleanup', '--force'))

const MODULES = `/lib/modules/${tool('uname -r').trim()}/kernel/net/ipv6/netfilter`

/** Takes a module away from the kernel, and gives what puts it back. */
function withoutModule(name: string): () => void {
  const file = readdirSync(MODULES).find(each => each.startsWith(`${name}.ko`)) ?? name
  const place = `${MODULES}/${file}`
  for (const user of ['nft_reject_inet', name]) tool(`modprobe -r ${user}`)
  renameSync(place, `${place}.away`)
  return () => renameSync(`${place}.away`, place)
}

function withoutAddresses(): () => void {
  const set = (value: number) => {
    for (const name of ['all', 'default']) tool(`sysctl -qw net.ipv6.conf.${name}.disable_ipv6=${value}`)
  }
  set(1)
  return () => set(0)
}

interface Lack {
  readonly name: string
  readonly mode: string
  /** What doctor, plan and verify name. */
  readonly part: string
  readonly take: () => () => void
  readonly holds: () => string
}

const LACKS: readonly Lack[] = [
  {
    name: 'addresses of IPv6 at new devices',
    mode: 'ipvs',
    part: 'the sysctl net/ipv6/conf/kube-ipvs0/disable_ipv6 is 1',
    take: withoutAddresses,
    holds: () => tool('ipvsadm -Sn') + tool('ip addr show kube-ipvs0'),
  },
  {
    name: 'nft_reject_ipv6',
    mode: 'nftables',
    part: 'nft_reject_ipv6',
    take: () => withoutModule('nft_reject_ipv6'),
    holds: () => tool('nft list table ip kube-proxy'),
  },
]

describe.each(LACKS)('a kernel without $name, $mode mode', ({ mode, part, take, holds }) => {
  const source = [`--source=file:${FILE}`, '--hostname-override=n', `--proxy-mode=${mode}`]

  it('serves IPv4, and the commands name the part in one line', async () => {
    const putBack = take()
    try {
      await kprobe('run', '--once', ...source)
      for (const ip of ['10.96.1.1', '10.1.0.1', '10.96.1.2', '10.1.0.2']) expect(holds()).toContain(ip)
      const examined = await kprobe('doctor', ...source)
      expect(examined.out).toMatch(/^warning .*IPv6 Services are not served: /m)
      for (const { out, code } of [await kprobe('plan', ...source), await kprobe('verify', ...source)]) {
        const [first = '', second = '', ...rest] = out.split('\n')
        expect(first).toMatch(/^IPv6 Services are not served: this kernel cannot program IPv6 \(/)
        expect(first).toContain(part)
        expect(second).toMatch(/^no difference|agree; 2 Services compared$/)
        expect([rest, code]).toEqual([[''], 0])
      }
    } finally {
      putBack()
    }
    const planned = await kprobe('plan', ...source)
    expect(planned.code).toBe(3)
    expect(planned.out).not.toContain('not served')
    expect((await kprobe('run', '--once', ...source)).code).toBe(0)
    expect((await kprobe('verify', ...source)).out).toContain('agree; 2 Services compared')
  })
})
