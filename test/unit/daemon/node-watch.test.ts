import { beforeEach, describe, expect, it } from 'vitest'
import { createLog } from '../../../src/base/log.ts'
import { NodeWatch } from '../../../src/daemon/node-watch.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { configFrom } from '../../support/parse-flags.ts'
import { node as nodeObject, OPTIONS, service, snapshotOf, tableOf } from '../model/objects.ts'

let clock: FakeClock
let logged: string[]
let names: readonly string[] | Error
let watch: NodeWatch

function open(...flags: string[]): void {
  const config = configFrom(flags)
  watch = new NodeWatch({
    clock,
    log: createLog({ format: 'text', verbosity: 0, destination: { write: line => void logged.push(line) } }),
    config: () => config,
    nameFrom: '--hostname-override',
    others: async () => {
      if (names instanceof Error) throw names
      return names
    },
  })
}

const node = (ips: readonly string[]) => snapshotOf([nodeObject({ ips })]).node
const nodePort = (...families: string[]) =>
  service(`web-${families.join('-').toLowerCase()}`, {
    type: 'NodePort',
    clusterIP: families[0] === 'IPv6' ? 'fd00:96::1' : '10.96.0.1',
    clusterIPs: families.map(family => (family === 'IPv6' ? 'fd00:96::1' : '10.96.0.1')),
    ports: [{ port: 80, nodePort: 30_080, protocol: 'TCP' }],
  })

/** Log lines, and what waits, since the last call. */
async function said(ms = 0): Promise<readonly string[]> {
  await clock.advance(ms)
  return logged.splice(0).map(line => line.replace(/ 20\S+Z/, ''))
}

beforeEach(() => {
  clock = new FakeClock()
  logged = []
  names = ['one', 'two']
})

describe('a Node that is missing', () => {
  it('F43: is a warning at once, after 30 s, and then at growing distances of up to 5 min', async () => {
    open('--source=kube', '--hostname-override=wrong-node')
    watch.take(undefined)
    const [first, ...more] = await said()
    expect(more).toEqual([])
    expect(first).toMatch(
      /^W Node not found: node ports answer on no address; \/healthz answers 503; policy Local /,
    )
    expect(first).toContain('set --hostname-override to the name of the Node of this machine')
    expect(first).toContain('node=wrong-node nameFrom=--hostname-override nodes=["one","two"]')
    const gapsS = [30, 60, 120, 240, 300, 300]
    for (const gapS of gapsS) {
      expect(await said(gapS * 1_000 - 1)).toEqual([])
      watch.take(undefined)
      expect(await said(1)).toHaveLength(1)
    }
  })

  it('is over once it appears, which is said once', async () => {
    open('--source=kube')
    watch.take(undefined)
    await said()
    watch.take(node(['192.168.1.7']))
    watch.take(node(['192.168.1.8']))
    expect(await said(600_000)).toEqual(['I Node found node=here ips=["192.168.1.7"]\n'])
  })

  it.each(['--source=kube', '--source=file:/objects'])(
    'is a warning again, with the first distance, when it goes after it was found: %s',
    async flag => {
      open(flag)
      names = flag === '--source=kube' ? ['one'] : []
      watch.take(undefined)
      await said(100_000)
      watch.take(node(['192.168.1.7']))
      await said()
      watch.take(undefined)
      expect(await said()).toHaveLength(1)
      expect(await said(30_000)).toHaveLength(flag === '--source=kube' ? 1 : 0)
    },
  )

  it('is no news where it is found at once, nor after stop()', async () => {
    open('--source=kube')
    watch.take(node(['192.168.1.7']))
    expect(await said(600_000)).toEqual([])
    watch.take(undefined)
    watch.stop()
    expect(await said(600_000)).toEqual([])
  })

  it('is a warning of its own when it was deleted', async () => {
    open('--source=kube')
    const known = node(['192.168.1.7'])
    watch.take(known)
    watch.take(known === undefined ? undefined : { ...known, deleted: true })
    expect((await said())[0]).toMatch(
      /^W Node deleted: its last addresses stay in use, \/healthz answers 503 /,
    )
    expect(await said(30_000)).toHaveLength(1)
  })

  it('F43: is repeated at growing distances when it was deleted from files', async () => {
    open('--source=file:/objects')
    names = []
    const known = node(['192.168.1.7'])
    watch.take(known)
    watch.take(known === undefined ? undefined : { ...known, deleted: true })
    expect((await said(600_000)).length).toBeLessThanOrEqual(6)
  })

  it('is said without names where those cannot be read', async () => {
    open('--source=kube')
    names = new Error('forbidden')
    watch.take(undefined)
    expect((await said())[0]).toMatch(/nodes=\[\] err="forbidden"\n$/)
  })

  it('is one warning without repetition where files hold no Node at all', async () => {
    open('--source=file:/objects')
    names = []
    watch.take(undefined)
    const [line, ...more] = await said(3_600_000)
    expect(more).toEqual([])
    expect(line).toMatch(/^W no Node object in the files: node ports answer on no address; policy Local /)
    expect(line).toContain('add a Node object of this name, or set --nodeport-addresses')
  })
})

describe('a Node with addresses of one family', () => {
  const table = (ips: readonly string[], ...services: object[]) =>
    tableOf([nodeObject({ ips }), ...services], {
      ...OPTIONS,
      nodePortSelection: { primary: true, cidrs: [] },
    })

  async function lookedAt(ips: readonly string[], ...services: object[]): Promise<readonly string[]> {
    watch.take(node(ips))
    watch.synced(table(ips, ...services))
    return await said()
  }

  it('F43: is a warning for the other once a Service has node ports there', async () => {
    open('--source=kube')
    expect(await lookedAt(['192.168.1.7'], nodePort('IPv4'))).toEqual([])
    const both = [nodePort('IPv4', 'IPv6')]
    const [line] = await lookedAt(['192.168.1.7'], ...both)
    expect(line).toMatch(/^W Node has no address of this family: its node ports answer on all addresses /)
    expect(line).toMatch(/family=IPv6 ips=\["192\.168\.1\.7"\]\n$/)
    expect(await lookedAt(['192.168.1.7'], ...both)).toEqual([])
    expect(await lookedAt(['192.168.1.7', 'fd01::7'], ...both)).toEqual([])
    expect(await lookedAt(['192.168.1.7'], ...both)).toHaveLength(1)
  })

  it('is a warning of its own where the Node has no address at all', async () => {
    open('--source=kube')
    const [line, ...more] = await lookedAt([], nodePort('IPv4'))
    expect(line).toMatch(/^W Node has no address: node ports answer on no address; /)
    expect(more).toEqual([])
  })

  it('KEP-6032: says that localhost alone is left, where it is asked for', async () => {
    open('--source=kube', '--nodeport-addresses=primary,localhost')
    const [line] = await lookedAt([], nodePort('IPv4'))
    expect(line).toMatch(/^W Node has no address: node ports answer at localhost alone; /)
    watch.take(undefined)
    expect((await said()).join('')).toContain('node ports answer at localhost alone; /healthz answers 503')
  })
})

describe('ranges of one family', () => {
  const DUAL = { ips: ['192.168.1.7', 'fd00::7'], podCIDRs: ['10.244.0.0/24', 'fd00:1::/64'] }
  const IPV4 = { ips: ['192.168.1.7'], podCIDRs: ['10.244.0.0/24'] }

  it.each([
    ['--nodeport-addresses=192.168.0.0/24', DUAL, 'nodePortAddresses has only IPv4 ranges'],
    ['--nodeport-addresses=192.168.0.0/24', { ...IPV4, podCIDRs: DUAL.podCIDRs }, 'only IPv4 ranges'],
    ['--nodeport-addresses=fd00::/64', IPV4, 'nodePortAddresses has only IPv6 ranges'],
    ['--cluster-cidr=fd00:1::/48', DUAL, 'clusterCIDR has only IPv6 ranges, and the Node is IPv4-primary'],
    ['--detect-local-mode=NodeCIDR', { ...IPV4, podCIDRs: ['fd00:1::/64'] }, 'spec.podCIDRs of the Node'],
    ['--nodeport-addresses=192.168.0.0/24', IPV4, undefined],
    ['--nodeport-addresses=192.168.0.0/24,fd00::/64', DUAL, undefined],
    ['--nodeport-addresses=primary,192.168.0.0/24', DUAL, undefined],
    ['--nodeport-addresses=localhost', DUAL, undefined],
    ['--cluster-cidr=10.244.0.0/16', DUAL, undefined],
  ])('%s at %o: as with kube-proxy, one warning or none', async (flag, object, warning) => {
    open('--source=kube', flag)
    const known = snapshotOf([nodeObject(object)]).node
    watch.take(known)
    watch.take(known === undefined ? undefined : { ...known })
    const lines = await said()
    expect(lines).toHaveLength(warning === undefined ? 0 : 1)
    if (warning !== undefined) expect(lines[0]).toContain(warning)
  })
})
