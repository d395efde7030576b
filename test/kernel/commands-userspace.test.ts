import { afterEach, beforeEach, expect, it } from 'vitest'
import { runCommand } from '../../src/commands.ts'
import { type Ended, runInProcess, tool } from '../support/command.ts'
import { Daemons, EXAMPLES } from '../support/daemon.ts'
import { FakeIo } from '../support/fake-io.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { eventually } from '../support/patience.ts'
import { CLUSTER_CIDR } from '../support/pipeline.ts'

/* The commands in userspace mode, beside a daemon that relays. */

const MODE = ['--hostname-override=example-node', '--proxy-mode=userspace', `--cluster-cidr=${CLUSTER_CIDR}`]
const SOURCE = [`--source=file:${EXAMPLES}`, ...MODE]

const kprobe = (...args: readonly string[]): Promise<Ended> => runInProcess(args)
const daemons = new Daemons()

beforeEach(() => {
  freshNetns()
  tool('ip', 'link', 'set', 'lo', 'up')
  tool('ip', 'addr', 'add', '10.1.2.3/24', 'dev', 'lo')
})

afterEach(async () => {
  await daemons.end()
  tool('nft', 'flush', 'ruleset')
})

async function relaying(): Promise<void> {
  await daemons.running({ source: EXAMPLES, args: MODE })
}

it('show which listener each Service is led to, and what is dropped, rejected or for some alone', async () => {
  await relaying()
  const text = (await kprobe('dump')).out
  const at = String.raw`10\.1\.2\.3:\d+`
  const lines = [
    String.raw`shop/cart:http +ClusterIP +10\.96\.1\.1:80/TCP +relayed at (${at})`,
    String.raw`shop/cart:http +NodePort +\*:30080/TCP +relayed at (${at})`,
    String.raw`kube-system/kube-dns:dns +ClusterIP +10\.96\.0\.10:53/UDP +relayed at (${at})`,
    String.raw`shop/checkout:https +External +198\.51\.100\.22:443/TCP +relayed at (${at}) \(from outside; pods and node: ${at}\)`,
    String.raw`shop/coming-soon:http +ClusterIP +10\.96\.1\.5:80/TCP +none: reject`,
    String.raw`shop/coming-soon:http +NodePort +\*:30084/TCP +none: reject`,
    String.raw`shop/storefront:http +External +198\.51\.100\.20:80/TCP +relayed at (${at}) \(only from 198\.51\.100\.128/25, 203\.0\.113\.0/24\)`,
  ]
  const found = lines.map(line => new RegExp(`^${line}$`, 'm').exec(text))
  expect(lines.filter((_, at) => found[at] === null)).toEqual([])
  const [cart, cartAtNodes, dns] = found.map(match => match?.[1])
  expect(cartAtNodes).toBe(cart)
  expect(dns).not.toBe(cart)
  const listening = tool('ss', '-lntuH')
  for (const place of [cart, dns]) expect(listening).toContain(` ${place} `)
  const metrics = await (await fetch('http://127.0.0.1:10249/metrics')).text()
  const listeners = listening.match(/ 10\.1\.2\.3:/g)?.length
  expect(metrics).toContain(`\nkprobe_relay_listeners ${listeners}\n`)
})

it('say while they watch that a relay has ended, which commits nothing', async () => {
  const daemon = await daemons.running({ source: EXAMPLES, args: MODE })
  const stop = new AbortController()
  const io = new FakeIo({ signal: stop.signal })
  const watching = runCommand(['dump', '-w', '--service=shop/cart'], io)
  await eventually(() => io.stdout.includes('relayed at'))
  expect(io.stdout).not.toContain('no process listens')
  await daemon.stop('SIGKILL')
  await eventually(() => io.stdout.includes('no process listens at '))
  stop.abort()
  expect(await watching).toBe(0)
})

it('show one Service alone, and name one that is not there', async () => {
  await relaying()
  const rows = JSON.parse((await kprobe('dump', '--service=shop/storefront', '-o', 'json')).out).services
  expect(rows.map(({ frontend }: { readonly frontend: string }) => frontend)).toEqual([
    '10.96.1.2:80',
    '198.51.100.20:80',
    '198.51.100.21:80',
    '*:30081',
    '10.96.1.2:443',
    '198.51.100.20:443',
    '198.51.100.21:443',
    '*:30082',
  ])
  expect(rows[1]).toMatchObject({ action: 'relay', allowedFrom: ['198.51.100.128/25', '203.0.113.0/24'] })
  const listed = (await kprobe('dump', 'nft', '--service=shop/storefront')).out
  expect(listed).toContain('198.51.100.20 . tcp . 80 . 203.0.113.0')
  expect(listed).not.toMatch(/shop\/cart|chain /)
  expect((await kprobe('dump', '--service=shop/nobody')).err).toContain(
    'the kernel holds nothing for the Service "shop/nobody"',
  )
})

it('find nothing to do, nothing that differs, and no stranger in what is ours', async () => {
  await relaying()
  expect(await kprobe('plan', ...SOURCE)).toMatchObject({
    code: 0,
    out: 'no difference: the kernel holds the wanted state\n',
  })
  expect((await kprobe('verify', ...SOURCE)).code).toBe(0)
  const doctor = await kprobe('doctor', ...SOURCE)
  expect(doctor.code, doctor.out).toBe(0)
  expect(doctor.out).not.toMatch(/kube-proxy-userspace|chains of an iptables mode|iptables mode wrote/)
  const asked = await kprobe('explain', ...SOURCE, '--from=10.244.0.99', '--to=10.96.1.1:80')
  expect(asked.out).toMatch(/^Source address: one of the node$/m)
  expect(asked.out).toMatch(/^ {2}\d+ % +10\.244\.0\.11:8080 /m)
})

it('take out what a daemon has left', async () => {
  await relaying()
  expect((await kprobe('cleanup')).err).toContain('another kprobe runs in this network namespace')
  await daemons.end()
  expect((await kprobe('cleanup')).out).toBe(
    'removed table ip kube-proxy-userspace\nremoved table ip6 kube-proxy-userspace\n',
  )
  expect(tool('nft', 'list', 'tables')).toBe('')
})

it('say once of each Service what the mode has no place for', async () => {
  const daemon = await daemons.running({ source: EXAMPLES, args: MODE })
  const refused = await daemon.logged('skipped: not supported by this kernel or proxy mode', 4)
  expect(refused.map(({ object, field }) => `${object} ${field}`).toSorted()).toEqual([
    'Service edge/signalling spec.ports.protocol',
    'Service edge/video spec.ipFamilies',
    'Service kube-system/kube-dns spec.ipFamilies',
    'Service shop/cart spec.ipFamilies',
  ])
})
