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

  it('refuses a flag that contradicts the daemon', async () => {
    const ended = await run('verify', `--admin-socket=${socket}`, '--cluster-cidr=10.9.0.0/16')
    expect(ended.code).toBe(2)
    expect(ended.err).toMatch(
      /^kprobe verify: --cluster-cidr: is "10\.9\.0\.0\/16"; the daemon at \S+ has "[^"]+"; omit the flag/m,
    )
  })

  it('reads the source itself when it is given one, and compares the daemon with it', async () => {
    const ended = await run(
      'verify',
      `--source=file:${EXAMPLES}`,
      '--hostname-override=other-node',
      `--admin-socket=${socket}`,
    )
    expect(ended.code).toBe(3)
    expect(ended.err).toContain(
      `kprobe verify: --proxy-mode is "nftables"; the daemon at ${socket} has "iptables"\n`,
    )
    expect(ended.out).toContain('source, daemon and kernel differ')
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

  it('takes names, and says what stands in the way of a connection', async () => {
    const folder = daemons.folder()
    const path = join(folder, 'all.json')
    socket = join(folder, 'admin.sock')
    writeFileSync(path, JSON.stringify({ apiVersion: 'v1', kind: 'List', items: objects }))
    await daemons.running({ source: path, args: [`--admin-socket=${socket}`] })
    const explain = async (from: string, to: string) =>
      (await run('explain', '--from', from, '--to', to, `--admin-socket=${socket}`)).out
    expect(await explain('pod/ns/web-a', 'web.ns.svc.cluster.local:http')).toMatch(
      /^TCP from 10\.1\.0\.8 .* to 10\.96\.0\.1:80\nService: ns\/web:http \(ClusterIP\)\nEndpointSlice ns\/web-1: ignored endpoints\[2\]\.addresses\[0\] 127\.0\.0\.1: .*\n\n/,
    )
    expect(await explain('203.0.113.9', 'svc/ns/empty')).toContain(
      '\nService ns/empty:http has no endpoints\nEndpointSlice ns/empty-1 is ignored: addressType FQDN: ',
    )
    const fromFile = ['explain', '--from=203.0.113.9', '--to=svc/ns/empty', `--source=file:${path}`]
    expect(await run(...fromFile)).toMatchObject({
      out: expect.stringContaining('\nEndpointSlice ns/empty-1 is ignored: addressType FQDN: '),
      err: expect.stringMatching(
        /^\S+all\.json: refused: EndpointSlice ns\/empty-1 addressType FQDN: [^\n]*\n$/,
      ),
    })
    const refused = expect.stringMatching(/: EndpointSlice ns\/empty-1 addressType FQDN: /)
    expect(await run('plan', `--admin-socket=${socket}`)).toMatchObject({ err: refused })
    expect(await explain('203.0.113.9', 'ns/web:81')).toContain(
      '\n10.96.0.1 is an address of Service ns/web; its ports there are 80/TCP (http)\n',
    )
    expect(await explain('203.0.113.9', '127.0.0.9:80')).toContain(
      '\nService ns/empty requests 127.0.0.9 (spec.externalIPs[0]), which kprobe refuses: a loopback address',
    )
  })

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

it('plan --summary counts changes without their objects', async () => {
  const source = [`--source=file:${EXAMPLES}`, '--hostname-override=example-node']
  const summary = await run('plan', '--summary', ...source)
  expect(summary.code).toBe(3)
  expect(summary.out).toMatch(
    /^\d+ changes for \d+ Services and shared rules: \d+ added, \d+ changed, \d+ removed\n$/,
  )
  const { changes, added, changed, removed, complete, shared } = JSON.parse(
    (await run('plan', '--summary', '-o', 'json', ...source)).out,
  )
  expect([complete, shared, added + changed + removed]).toEqual([true, true, changes])
})
