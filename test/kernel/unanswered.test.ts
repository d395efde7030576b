import { execFileSync } from 'node:child_process'
import { createSocket } from 'node:dgram'
import { once } from 'node:events'
import { writeFileSync } from 'node:fs'
import { connect, createServer, type Server, type Socket } from 'node:net'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { runInProcess } from '../support/command.ts'
import { Daemons } from '../support/daemon.ts'
import { drawsToMeet } from '../support/draws.ts'
import { forwardPackets, freshNetns } from '../support/lab/netns.ts'
import { serviceOf, sliceOf } from '../support/objects.ts'
import { eventually } from '../support/patience.ts'

/** Packets to the second one leave by a device that loses them. */
const [ALIVE, DEAD] = ['10.21.0.1', '10.21.0.9']
const [VIP, CALM_VIP, SYSLOG_VIP] = ['10.96.0.1', '10.96.0.2', '10.96.0.3']
const NODE_IP = '192.168.0.2'

const daemons = new Daemons()
const clients: Socket[] = []
let server: Server | undefined
let socket: string
let [silent, answered] = [0, 0]

function setTimeoutS(name: string, seconds: number): void {
  writeFileSync(`/proc/thread-self/root/proc/sys/net/netfilter/nf_conntrack_${name}`, `${seconds}`)
}

beforeAll(async () => {
  freshNetns()
  forwardPackets()
  const lines = [
    'link set lo up',
    'link add lost type veth peer name sink',
    'link set lost up',
    'link set sink up',
    `address add ${NODE_IP}/32 dev lo`,
    `address add ${ALIVE}/32 dev lo`,
    'route add default dev lo',
    `route add ${DEAD}/32 dev lost`,
    // The other end ignores packets to another link address.
    `neigh add ${DEAD} lladdr 02:00:00:00:00:09 dev lost nud permanent`,
  ]
  execFileSync('ip', ['-batch', '-'], { input: lines.join('\n') })
  server = createServer(connection => connection.on('error', () => undefined)).listen(8_080, ALIVE)
  await once(server, 'listening')
  const syslog = [{ name: 'syslog', port: 514, protocol: 'UDP' }]
  const items = [
    serviceOf('shop/cart', VIP),
    sliceOf('shop/cart', [ALIVE, DEAD]),
    serviceOf('shop/calm', CALM_VIP),
    sliceOf('shop/calm', [ALIVE]),
    serviceOf('infra/log', SYSLOG_VIP, { ports: syslog }),
    sliceOf('infra/log', [DEAD], { ports: [{ name: 'syslog', port: 5_514, protocol: 'UDP' }] }),
  ]
  const source = join(daemons.folder(), 'objects.json')
  socket = join(daemons.folder(), 'admin.sock')
  writeFileSync(source, JSON.stringify({ apiVersion: 'v1', kind: 'List', items }))
  await daemons.running({ source, args: [`--admin-socket=${socket}`] })
  await callAll()
  // A repeated SYN would begin the timeout anew.
  for (const client of clients) client.destroy()
  // What is left of their timeouts now looks as if the packets were 10 s old.
  setTimeoutS('tcp_timeout_syn_sent', 130)
  setTimeoutS('udp_timeout', 40)
})

afterAll(async () => {
  server?.close()
  await daemons.end()
})

async function callAll(): Promise<void> {
  const calls = drawsToMeet(2)
  for (let n = 0; n < calls; n++) {
    const client = connect({ host: VIP, port: 80, localAddress: NODE_IP })
    client.on('error', () => undefined).on('connect', () => answered++)
    clients.push(client)
  }
  clients.push(connect({ host: CALM_VIP, port: 80, localAddress: NODE_IP }))
  const sender = createSocket('udp4')
  await new Promise(done => sender.send('a line', 514, SYSLOG_VIP, done))
  sender.close()
  await eventually(async () => {
    const { out } = await runInProcess([
      'flows',
      `--admin-socket=${socket}`,
      '-n',
      'shop',
      '--service=cart',
      '-o',
      'json',
    ])
    const flows = out.split('\n').filter(line => line !== '')
    silent = flows.filter(line => line.includes('"isAnswered":false') && line.includes(DEAD)).length
    return silent > 0 && answered > 0 && silent + answered === calls
  })
}

const run = (...args: string[]) => runInProcess([...args, `--admin-socket=${socket}`])

it('why names the endpoint in its first sentence and its line, and exits 3', async () => {
  const { code, out } = await run('why', `--from=${NODE_IP}`, '--to=shop/cart')
  const its = `${silent} of ${silent} connection${silent === 1 ? '' : 's'}`
  expect(out.split('\n')[0]).toBe(
    `the rules send it to 2 endpoints; ${its} to ${DEAD}:8080 had no reply in the last minute`,
  )
  expect(out).toMatch(new RegExp(`50 % +${DEAD}:8080.*; ${its} had no reply in the last minute\n`))
  expect(code).toBe(3)
})

it('why says nothing of it about a Service that answers', async () => {
  const { code, out } = await run('why', `--from=${NODE_IP}`, '--to=shop/calm')
  expect([code, out.split('\n')[0]]).toEqual([0, `served: always ${ALIVE}:8080`])
})

it('why takes a UDP port without any reply for one-way', async () => {
  const { code, out } = await run('why', `--from=${NODE_IP}`, '--to=infra/log')
  expect(code).toBe(0)
  expect(out).toContain('1 of 1 connection had no reply in the last minute (the port has answered no client')
})

it('top has a column of it, and a line', async () => {
  const { out } = await run('top', '--by=endpoint', '--interval=200ms')
  expect(out).toContain(`to ${DEAD}:8080 had no reply in the last minute`)
  expect(out).toMatch(new RegExp(`^shop/cart\\S* +${DEAD}:8080 .* ${silent}/${silent} +0$`, 'm'))
  const json = JSON.parse((await run('top', '--once', '-o', 'json', '-n', 'shop')).out)
  expect(json.unanswered).toEqual({
    seenS: 60,
    rows: [
      {
        service: expect.stringContaining('shop/cart'),
        protocol: 'TCP',
        endpoint: `${DEAD}:8080`,
        connections: silent,
        unanswered: silent,
        isOneClient: true,
        isOneWay: false,
      },
    ],
  })
})

it('flows names the connections, and counts them by endpoint', async () => {
  const { out } = await run('flows', '--service=shop/cart')
  expect(out).toMatch(/ENDPOINT +REPLY/)
  expect(out.split('\n').filter(line => / none\b/.test(line))).toHaveLength(silent)
  expect((await run('flows', '--group-by=endpoint')).out).toMatch(
    new RegExp(`${DEAD}:8080 +${silent} +${silent}$`, 'm'),
  )
})
