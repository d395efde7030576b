import { spawnSync } from 'node:child_process'
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { type Ended, runInProcess, tool } from '../support/command.ts'
import { COMMAND, Daemons, EXAMPLES } from '../support/daemon.ts'
import { forwardPackets } from '../support/lab/netns.ts'
import { eventually, patientMs } from '../support/patience.ts'

const daemons = new Daemons()
const nft = (...args: readonly string[]): string => tool('nft', ...args)
const run = (...args: string[]): Promise<Ended> => runInProcess(args)

let socket: string

beforeAll(() => {
  forwardPackets()
  socket = join(daemons.folder(), 'admin.sock')
})

async function end(): Promise<void> {
  await daemons.end()
  nft('flush', 'ruleset')
}

afterAll(end)

describe('a command that is given nothing but the admin socket', () => {
  // The daemon of the examples, in the iptables mode: not what any command would do by default.
  beforeAll(async () => {
    const args = ['--proxy-mode=iptables', '--nodeport-addresses=0.0.0.0/0', `--admin-socket=${socket}`]
    await daemons.running({ source: EXAMPLES, args })
  })

  afterAll(end)

  it('uses configuration and objects of the daemon, in its mode', async () => {
    expect(await run('plan', `--admin-socket=${socket}`)).toMatchObject({
      code: 0,
      out: 'no difference: the kernel holds the wanted state\n',
    })
    const verified = await run('verify', `--admin-socket=${socket}`)
    expect(verified.code).toBe(0)
    expect(verified.out).toMatch(/^daemon \(source not read\) and kernel agree; \d+ Services compared\n$/)
    const question = ['--from', '203.0.113.9', '--to', '10.96.1.1:80']
    const explained = await run('explain', ...question, `--admin-socket=${socket}`)
    expect(explained).toMatchObject({ code: 0, err: '' })
    expect(explained.out).toContain('Service: shop/cart:http (ClusterIP)')
    expect(explained.out).toContain('KUBE-SERVICES')
    const answered = await run('why', ...question, `--admin-socket=${socket}`)
    expect(answered).toMatchObject({ code: 0, err: '' })
    expect(answered.out).toMatch(/^served: any of 2 endpoints, a half each; .*1 of 4 is not ready/)
    expect(answered.out).toMatch(/\n {2}ip nat KUBE-SERVICES, rule \d+: /)
  })

  it('leads no packet of others anywhere where the node does not forward', async () => {
    const question = ['--to=10.96.1.1:80', `--admin-socket=${socket}`]
    writeFileSync('/proc/sys/net/ipv4/ip_forward', '0')
    try {
      const outside = await run('why', '--from=outside', ...question)
      expect(outside.code).toBe(3)
      expect(outside.out).toMatch(/^not forwarded: net\.ipv4\.ip_forward is 0, so this node drops packets /)
      expect((await run('explain', '--from=outside', ...question)).code).toBe(3)
      const json = JSON.parse((await run('why', '--from=outside', '-o=json', ...question)).out)
      expect(json).toMatchObject({ isServed: false, answer: outside.out.split('\n')[0] })
      expect((await run('why', '--from=127.0.0.1', ...question)).out).toMatch(
        /^(served|kprobe's rules serve it): /,
      )
    } finally {
      forwardPackets()
    }
  })

  it('finds the daemon where the manifests put its socket', async () => {
    const script = `mount -t tmpfs tmpfs /run && mkdir /run/kprobe && ln -s ${socket} /run/kprobe/admin.sock && exec ${process.execPath} ${COMMAND} plan --summary`
    const { status, stdout, stderr } = spawnSync('unshare', ['-m', 'sh', '-c', script], {
      encoding: 'utf8',
      timeout: patientMs(60_000),
    })
    expect([status, stderr]).toEqual([0, ''])
    expect(stdout).toBe('no difference: the kernel holds the wanted state\n')
  })
})

describe('without a daemon', () => {
  it.each([
    ['plan'],
    ['verify'],
    ['verify', `--source=file:${EXAMPLES}`],
    ['explain', '--from', '203.0.113.9', '--to', '10.96.1.1:80'],
    ['dump'],
    ['dump', 'ipvs'],
  ])('a command fails when no daemon answers at the socket that it is given: %s %s', async (...args) => {
    expect(await run(...args, `--admin-socket=${socket}`)).toEqual({
      code: 1,
      out: '',
      err: `kprobe ${args[0]}: no daemon answers at ${socket}\n`,
    })
  })
})

describe('kprobe explain', () => {
  const service = (name: string, spec: object) => ({
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { namespace: 'ns', name },
    spec: { ports: [{ name: 'http', port: 80 }], ...spec },
  })
  const objects = [
    service('web', { clusterIP: '10.96.0.1' }),
    service('empty', { clusterIP: '10.96.0.2', externalIPs: ['127.0.0.9'] }),
    {
      apiVersion: 'discovery.k8s.io/v1',
      kind: 'EndpointSlice',
      metadata: { namespace: 'ns', name: 'web-1', labels: { 'kubernetes.io/service-name': 'web' } },
      addressType: 'IPv4',
      ports: [{ name: 'http', port: 8080 }],
      endpoints: [
        { addresses: ['10.1.0.9'], conditions: {}, targetRef: { kind: 'Pod', name: 'web-b' } },
        { addresses: ['10.1.0.8'], conditions: {}, targetRef: { kind: 'Pod', name: 'web-a' } },
        { addresses: ['127.0.0.1'] },
      ],
    },
    {
      apiVersion: 'discovery.k8s.io/v1',
      kind: 'EndpointSlice',
      metadata: { namespace: 'ns', name: 'empty-1', labels: { 'kubernetes.io/service-name': 'empty' } },
      addressType: 'FQDN',
      endpoints: [{ addresses: ['example.org'] }],
    },
  ]

  afterEach(end)

  it('has a short form, why, which asks the daemon since when something is refused', async () => {
    const path = join(daemons.folder(), 'all.json')
    const write = (items: readonly object[]) =>
      writeFileSync(path, JSON.stringify({ apiVersion: 'v1', kind: 'List', items }))
    socket = join(daemons.folder(), 'admin.sock')
    write(objects)
    await daemons.running({ source: path, args: [`--admin-socket=${socket}`] })
    const why = async (from: string, to: string) =>
      await run('why', '--from', from, '--to', to, `--admin-socket=${socket}`)
    expect((await why('pod/ns/web-a', 'web.ns.svc:http')).out).toMatch(
      /^served: any of 2 endpoints, a half each\n\nTCP from pod\/ns\/web-a \(10\.1\.0\.8\) to web\.ns\.svc:http \(10\.96\.0\.1:80\)\n/,
    )
    expect((await why('outside', 'svc/ns/empty')).out).toMatch(
      /^ns\/empty:http has no endpoint: no EndpointSlice lists one for its port http\/TCP in IPv4; the connection is rejected\n/,
    )
    expect((await why('outside', '127.0.0.9:80')).out).toMatch(
      /^refused since (\S+ )?\d\d:\d\d UTC or earlier: ns\/empty requests 127\.0\.0\.9 \(spec\.externalIPs\[0\]\): a loopback address/,
    )
    write([...objects, service('late', { clusterIP: '10.96.0.3', externalIPs: ['127.0.0.8'] })])
    await eventually(async () => (await why('outside', '127.0.0.8:80')).out.startsWith('refused'), {})
    expect((await why('outside', '127.0.0.8:80')).out).toMatch(
      /^refused since (\S+ )?\d\d:\d\d UTC: ns\/late requests 127\.0\.0\.8 \(spec\.externalIPs\[0\]\): a loopback address/,
    )
    expect(await run('completion', 'services', `--admin-socket=${socket}`)).toMatchObject({
      code: 0,
      out: 'ns/empty\nns/late\nns/web\n',
    })
    expect((await why('outside', 'svc/ns/lat')).err).toContain('no Service "ns/lat"; did you mean ns/late?')
  })
})

it('doctor says that no daemon runs, since when, and exits 3, while rules of kprobe stay', async () => {
  const at = join(daemons.folder(), 'admin.sock')
  const doctor = () => run('doctor', `--admin-socket=${at}`)
  const daemon = await daemons.running({ source: EXAMPLES, args: [`--admin-socket=${at}`] })
  expect((await doctor()).out).not.toContain('STOPPED')
  await daemon.stop('SIGKILL')
  const killed = await doctor()
  expect(killed.code).toBe(3)
  expect(killed.out).toMatch(
    /^STOPPED +no kprobe daemon runs +the last one started at \d{4}-\S+Z and was killed later; rules of nftables mode stay /m,
  )
  expect(killed.out).toMatch(
    /^no kprobe daemon runs, and its rules no longer follow changes; apart from that, /m,
  )
  const next = await daemons.running({ source: EXAMPLES, args: [`--admin-socket=${at}`] })
  await next.stop()
  expect((await doctor()).out).toMatch(/^STOPPED +no kprobe daemon runs +since \d{4}-\S+Z; rules of /m)
  nft('flush', 'ruleset')
  expect((await doctor()).out).not.toContain('STOPPED')
  await end()
})
