import { spawnSync } from 'node:child_process'
import { createServer } from 'node:http'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { command as dump } from '../../src/inspect/check/dump.ts'
import { type Ended, runInProcess, tool } from '../support/command.ts'
import { EXAMPLE_FLAGS } from '../support/daemon.ts'
import { FakeIo } from '../support/fake-io.ts'
import { eventually } from '../support/patience.ts'

/* The commands in IPVS mode, on a kernel that has IPVS, beside the tools of the trade. */

const SOURCE = [...EXAMPLE_FLAGS, '--proxy-mode=ipvs']

const kprobe = (...args: readonly string[]): Promise<Ended> => runInProcess(args)
const sorted = (text: string): readonly string[] =>
  text
    .split('\n')
    .filter(line => line !== '')
    .sort()

function names(): readonly string[] {
  return sorted(tool('ipset', 'list', '-n')).filter(name => name.startsWith('KUBE-'))
}

async function remove(): Promise<void> {
  await kprobe('cleanup', '--force')
  spawnSync('ipvsadm', ['-D', '-t', '198.51.100.99:99'])
  spawnSync('ipset', ['destroy', 'mine'])
}

beforeAll(() => {
  tool('ipvsadm', '-A', '-t', '198.51.100.99:99', '-s', 'rr')
  tool('ipset', 'create', 'mine', 'hash:ip')
})

afterAll(remove)

describe('the commands in IPVS mode', () => {
  it('put into the kernel what is asked for, and nothing is left to do then', async () => {
    expect((await kprobe('plan', ...SOURCE)).code).toBe(3)
    const ran = await kprobe('run', '--once', '-v=1', ...SOURCE)
    expect(ran, ran.err).toMatchObject({ code: 0 })
    expect(ran.out).toMatch(/programmed 10 Services/)
    expect(await kprobe('plan', ...SOURCE)).toMatchObject({
      code: 0,
      out: 'no difference: the kernel holds the wanted state\n',
    })
    expect(tool('ipvsadm', '-S', '-n')).toContain('-A -t 10.96.0.10:53 -s rr\n-a -t 10.96.0.10:53 -r ')
    expect(tool('sysctl', '-n', 'net.ipv4.vs.conntrack')).toBe('1\n')
  })

  it('dump what is ours as the tools do', async () => {
    const ours = sorted(tool('ipvsadm', '-S', '-n')).filter(line => !line.includes('198.51.100.99'))
    expect(sorted((await kprobe('dump', 'ipvs', '-o', 'ipvsadm-save')).out)).toEqual(ours)
    const sets = sorted(tool('ipset', 'save')).filter(line => !/^(create|add) mine\b/.test(line))
    expect(sorted((await kprobe('dump', '-o', 'ipset-save')).out)).toEqual(sets)
    const v6: unknown = JSON.parse((await kprobe('dump', 'ipvs', '--family=IPv6', '-o', 'json')).out)
    expect(JSON.stringify(v6)).not.toContain('10.96.')
    expect((await kprobe('dump')).out).toMatch(
      /ClusterIP +10\.96\.0\.10:53\/UDP +10\.244\.0\.2:53, 10\.244\.1\.2:53/,
    )
    expect((await kprobe('dump', 'nft')).out).toContain('table ip kube-proxy-ipvs {')
  })

  it('name whom our own rules are about, and say who knows the rest', async () => {
    const dumped = await kprobe('dump', 'ipvs')
    expect(dumped.out).toMatch(/^shop\/checkout:https +TCP 198\.51\.100\.22:443 /m)
    expect(dumped.out).toMatch(/^- +UDP 10\.96\.0\.10:53 /m)
    expect(dumped.err).toMatch(/^some IPVS objects have no Service name here; --admin-socket /)
    expect(await kprobe('dump', 'ipset', '--service=shop/checkout')).toMatchObject({ code: 1, out: '' })
    expect(await kprobe('dump', '--admin-socket=/nobody.sock')).toMatchObject({
      code: 1,
      err: 'kprobe dump: no daemon answers at /nobody.sock\n',
    })
  })

  it('dump names anew while it watches', async () => {
    const socket = '/run/kprobe-names.sock'
    const port = { name: 'kube-system/dns:dns', protocol: 'UDP', frontends: [{ ip: '10.96.0.10', port: 53 }] }
    let services: readonly object[] = []
    const daemon = createServer((_, response) => response.end(JSON.stringify({ services })))
    await new Promise<void>(listening => daemon.listen(socket, listening))
    const stop = new AbortController()
    const io = new FakeIo({ signal: stop.signal })
    const watching = dump.run(['--watch', `--admin-socket=${socket}`], io)
    await eventually(() => io.stdout.includes('10.96.0.10:53/UDP'))
    expect(io.stdout).not.toContain('kube-system/dns:dns')
    services = [{ service: 'kube-system/dns', ports: [port] }]
    await eventually(() => /^kube-system\/dns:dns +ClusterIP +10\.96\.0\.10:53\/UDP/m.test(io.stdout), {
      describe: () => io.stdout,
    })
    stop.abort()
    expect(await watching).toBe(0)
    await new Promise(closed => daemon.close(closed))
  })

  it('name what somebody changed, and heal it', async () => {
    tool('ipvsadm', '-D', '-u', '10.96.0.10:53')
    const verified = await kprobe('verify', ...SOURCE)
    expect(verified).toMatchObject({ code: 3 })
    expect(verified.out).toMatch(/kube-system\/kube-dns +not queried +\d+ changes?/)
    expect((await kprobe('run', '--once', ...SOURCE)).code).toBe(0)
    expect((await kprobe('verify', ...SOURCE)).code).toBe(0)
  })

  it('change the scheduler of what is there', async () => {
    expect((await kprobe('run', '--once', '--ipvs-scheduler=lc', ...SOURCE)).code).toBe(0)
    expect(tool('ipvsadm', '-S', '-n')).toContain('-A -u 10.96.0.10:53 -s lc\n')
  })

  it('remove only the objects of kprobe', async () => {
    const cleaned = await kprobe('cleanup')
    expect(cleaned).toMatchObject({ code: 0 })
    expect(cleaned.out).toMatch(/^removed \d+ IPVS virtual servers\n/)
    expect(tool('ipvsadm', '-S', '-n')).toBe('-A -t 198.51.100.99:99 -s rr\n')
    expect(names()).toEqual([])
    expect(tool('ipset', 'list', '-n')).toBe('mine\n')
    expect(tool('nft', 'list', 'tables')).not.toContain('kube-proxy')
    expect(tool('ip', '-br', 'link')).not.toContain('kube-ipvs0')
    expect((await kprobe('cleanup')).out).toBe(
      'the kernel holds no objects of kprobe\nleft by kube-proxy: 1 IPVS virtual server, if they are its; the command removes all virtual servers, those of other programs too (remove with `kube-proxy --cleanup`)\n',
    )
  })

  it('take over what the IPVS mode of kube-proxy left, or remove it, and nothing else', async () => {
    const leave = (): void => {
      tool('ipset', 'create', 'KUBE-IPVS-IPS', 'hash:ip')
      tool('ipset', 'create', 'KUBE-CLUSTER-IP', 'hash:ip,port')
      tool('ip', 'link', 'add', 'kube-ipvs0', 'type', 'dummy')
      for (const address of ['10.96.0.10', '10.96.9.9']) {
        tool('ipset', 'add', 'KUBE-IPVS-IPS', address)
        tool('ipset', 'add', 'KUBE-CLUSTER-IP', `${address},tcp:53`)
        tool('ip', 'address', 'add', `${address}/32`, 'dev', 'kube-ipvs0')
        tool('ipvsadm', '-A', '-t', `${address}:53`, '-s', 'rr')
        tool('ipvsadm', '-a', '-t', `${address}:53`, '-r', '10.244.7.7:53', '-m')
      }
    }
    leave()
    expect((await kprobe('cleanup')).out).toMatch(
      /^the kernel holds no objects of kprobe\nleft by kube-proxy: /,
    )
    const cleaned = await kprobe('cleanup', '--leftovers-of=kube-proxy')
    expect(cleaned.out).toMatch(/^removed 2 IPVS virtual servers\n/)
    expect(tool('ipvsadm', '-S', '-n')).toBe('-A -t 198.51.100.99:99 -s rr\n')
    expect(tool('ipset', 'list', '-n')).toBe('mine\n')
    leave()
    expect(await kprobe('run', '--once', ...SOURCE)).toMatchObject({ code: 0 })
    const servers = tool('ipvsadm', '-S', '-n')
    expect(servers).toContain('-A -t 198.51.100.99:99 -s rr\n')
    expect(servers).toContain('-A -t 10.96.0.10:53 -s rr\n-a -t 10.96.0.10:53 -r ')
    expect(servers).not.toContain('10.96.9.9')
    expect(tool('ip', 'address', 'show', 'dev', 'kube-ipvs0')).not.toContain('10.96.9.9')
    expect(tool('ipset', 'save')).not.toContain('10.96.9.9')
  })
})
