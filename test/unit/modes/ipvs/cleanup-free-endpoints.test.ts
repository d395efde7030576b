import { describe, expect, it } from 'vitest'
import { formatIp, parseCidr } from '../../../../src/base/ip.ts'
import type { IpvsClient } from '../../../../src/kernel/ipvs/client.ts'
import { serverKey } from '../../../../src/kernel/ipvs/state.ts'
import { freeEndpoints } from '../../../../src/modes/ipvs/cleanup.ts'
import { DEFAULT_IPVS_OPTIONS, type IpvsOptions } from '../../../../src/modes/ipvs/settings.ts'
import { ip, newServer, virtual } from '../../../support/ipvs-objects.ts'
import { ipvsBench, ipvsKernelOf } from '../../../support/ipvs-rig.ts'
import { serviceOf } from '../../../support/ipvs-services.ts'

const API = '198.51.100.1'
const OTHER = '198.51.100.2'
const THIEF = { ip: '172.30.0.1', externalIPs: [API, OTHER], endpoints: ['10.1.0.1'] }

/** A node that a process has left with this Service. */
async function nodeWith(service: Parameters<typeof serviceOf>[1] | undefined) {
  const { node, clock, start } = ipvsBench()
  const rig = start()
  if (service !== undefined) await rig.sync(serviceOf('thief', service))
  await rig.reconciler.stop()
  const kernel = ipvsKernelOf(node, clock)
  const free = async (text: string, port: number, options: Partial<IpvsOptions> = {}) => {
    const freed = await freeEndpoints(kernel, [{ ip: ip(text), port }], {
      ...DEFAULT_IPVS_OPTIONS,
      ...options,
    })
    return { addresses: freed.addresses.map(formatIp), servers: freed.servers.map(serverKey) }
  }
  return { node, kernel, free }
}

async function serversOf(ipvs: IpvsClient): Promise<readonly string[]> {
  return (await ipvs.servers()).map(serverKey).sort()
}

describe('F131: freeEndpoints', () => {
  it('F131: removes the address and the virtual server of a captured endpoint, and no others', async () => {
    const { node, kernel, free } = await nodeWith(THIEF)
    const entries = () => node.dump().filter(line => line.startsWith('entry '))
    const before = entries()
    expect(await free(API, 80)).toEqual({ addresses: [API], servers: [`TCP ${API}:80`] })
    expect(await serversOf(kernel.ipvs)).toEqual(['TCP 172.30.0.1:80', `TCP ${OTHER}:80`])
    expect(node.addresses().map(formatIp).sort()).toEqual(['172.30.0.1', OTHER])
    // The record for the next pass.
    expect(entries()).toEqual(before)
    expect(await free(API, 80)).toEqual({ addresses: [], servers: [] })
  })

  it('F131: removes the address that a Service has at another port, and leaves that virtual server', async () => {
    const { free } = await nodeWith(THIEF)
    expect(await free(API, 6443)).toEqual({ addresses: [API], servers: [] })
  })

  it('F131: leaves a ClusterIP, which only IPVS leads to', async () => {
    const { free } = await nodeWith(THIEF)
    expect(await free('172.30.0.1', 80)).toEqual({ addresses: [], servers: [] })
  })

  it('F131: leaves what others put there', async () => {
    const { kernel, free } = await nodeWith(THIEF)
    await kernel.dummy.commit('kube-ipvs0', { add: [ip('198.51.100.9')], remove: [] })
    await kernel.ipvs.commit([newServer(virtual('198.51.100.9', 6443))])
    expect(await free('198.51.100.9', 6443)).toEqual({ addresses: [], servers: [] })
  })

  it('F131: leaves virtual servers in --ipvs-exclude-cidrs', async () => {
    const { free } = await nodeWith(THIEF)
    const excluded = parseCidr('198.51.100.0/24')
    const excludeCidrs = excluded === undefined ? [] : [excluded]
    expect(await free(API, 80, { excludeCidrs })).toEqual({ addresses: [API], servers: [] })
  })

  it('F131: asks for no more than the device where IPVS mode was never in use', async () => {
    const { node, free } = await nodeWith(undefined)
    const before = node.messages
    expect(await free(API, 80)).toEqual({ addresses: [], servers: [] })
    expect(node.messages - before).toBe(1)
  })
})
