import { execFileSync } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest'
import { finish, systemClock } from '../../src/base/clock.ts'
import { KERNEL } from '../../src/daemon/open.ts'
import { readRules } from '../../src/proof/kernel-rules.ts'
import { type Ended, runInProcess } from '../support/command.ts'
import { openIpvsPlane } from '../support/ipvs-plane.ts'
import { commitAll, IPVS, ip } from '../support/pipeline.ts'
import { proofOfIpvs } from '../support/proof-ipvs.ts'
import { LOCAL_IPS } from '../support/scenario.ts'
import { allStops } from '../support/walk.ts'

/* What src/proof says of virtual servers, ipsets and addresses as a kernel with IPVS holds them. */

const folder = mkdtempSync(join(tmpdir(), 'kprobe-proof-'))
const objects = join(folder, 'objects.yaml')
const SOURCE = [`--source=file:${objects}`, '--hostname-override=node-1', '--proxy-mode=ipvs']

const kprobe = (...args: readonly string[]): Promise<Ended> => runInProcess(args)
const prove = (...args: readonly string[]) => kprobe('verify', '--prove', ...SOURCE, ...args)
const tool = (line: string): string => {
  const [name = '', ...args] = line.split(' ')
  return execFileSync(name, args, { encoding: 'utf8' })
}

beforeAll(() => {
  const service = {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { namespace: 'shop', name: 'cart' },
    spec: {
      type: 'ClusterIP',
      clusterIP: '10.96.1.1',
      clusterIPs: ['10.96.1.1'],
      ipFamilies: ['IPv4'],
      ports: [{ port: 80, protocol: 'TCP' }],
    },
  }
  const slice = {
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: { namespace: 'shop', name: 'cart-1', labels: { 'kubernetes.io/service-name': 'cart' } },
    addressType: 'IPv4',
    endpoints: [{ addresses: ['10.244.0.7'] }, { addresses: ['10.244.1.7'] }],
    ports: [{ name: '', port: 8080, protocol: 'TCP' }],
  }
  writeFileSync(objects, [service, slice].map(its => JSON.stringify(its)).join('\n---\n'))
})
afterEach(() => kprobe('cleanup', '--force'))
afterAll(() => rmSync(folder, { recursive: true }))

it('scenarios are proved from what the kernel holds', async () => {
  const stops = allStops(IPVS).filter(({ computed }) => computed.config.serviceProxyName === undefined)
  for (const { name, computed } of stops.filter((_, index) => index % 40 === 0)) {
    const { config, resolved } = computed
    const { plane, close } = openIpvsPlane(config)
    const { state } = await plane.observe()
    const wanted = finish(plane.render(resolved.table, { base: state, without: new Set() }))
    await commitAll(plane, state, wanted)
    const { tables, ipvs } = await readRules({
      ...{ sockets: KERNEL, clock: systemClock },
      ...{ usesIpvs: true, device: undefined, isPassing: () => false },
    })
    if (ipvs === undefined) throw new Error('IPVS was not read')
    const held = { ...ipvs, addresses: [...ipvs.addresses, ...LOCAL_IPS.map(ip)] }
    const { differences, wrong } = proofOfIpvs(config, resolved.snapshot, { tables, held })
    expect(differences, name).toEqual([])
    expect(wrong).toBe(0)
    await close()
  }
})

describe('kprobe verify --prove in IPVS mode', () => {
  const DAMAGES: readonly (readonly [command: string, kernel: string])[] = [
    ['ip addr del 10.96.1.1/32 dev kube-ipvs0', 'the kernel: pass'],
    ['ipvsadm -D -t 10.96.1.1:80', 'the kernel: this node itself'],
    ['ipvsadm -e -t 10.96.1.1:80 -r 10.244.0.7:8080 -m -w 0', '10.244.0.7:8080 gets 0 % instead of 50 %'],
    ['ipset del KUBE-CLUSTER-IP 10.96.1.1,tcp:80', 'the kernel: reject'],
    ['nft flush chain ip kube-proxy-ipvs services', 'the kernel: '],
  ]

  it('exits 0 where every packet meets its fate, and names each damage', async () => {
    expect((await kprobe('run', '--once', ...SOURCE)).code).toBe(0)
    const proved = await prove()
    expect(proved, proved.out).toMatchObject({ code: 0 })
    expect(proved.out).toContain('nothing outside of nf_tables, IPVS and ipsets decides')
    for (const [command, kernel] of DAMAGES) {
      tool(command)
      const found = await prove()
      expect(found, command).toMatchObject({ code: 3, out: expect.stringContaining(kernel) })
      expect((await kprobe('run', '--once', ...SOURCE)).code).toBe(0)
    }
  })

  it('does so with rules of iptables', async () => {
    const rules = '--ipvs-rules=iptables'
    expect((await kprobe('run', '--once', ...SOURCE, rules)).code).toBe(0)
    const proved = await prove(rules)
    expect(proved, proved.out).toMatchObject({ code: 0 })
    tool('ipvsadm -D -t 10.96.1.1:80')
    expect(await prove(rules)).toMatchObject({ code: 3, out: expect.stringContaining('this node itself') })
    expect((await kprobe('run', '--once', ...SOURCE, rules)).code).toBe(0)
    tool('ipset del KUBE-CLUSTER-IP 10.96.1.1,tcp:80')
    expect(await prove(rules)).toMatchObject({ code: 3, out: expect.stringContaining('the kernel: reject') })
  })
})
