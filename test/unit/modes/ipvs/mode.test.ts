import { expect, it } from 'vitest'
import type { IpvsTimeouts } from '../../../../src/kernel/ipvs/state.ts'
import { applyTimeouts, readTraffic } from '../../../../src/modes/ipvs/mode.ts'
import { ipvsBench, ipvsKernelOf } from '../../../support/ipvs-rig.ts'
import { serviceOf } from '../../../support/ipvs-services.ts'

const PRESENT: IpvsTimeouts = { tcpS: 900, tcpFinS: 120, udpS: 300 }

it('sets the timeouts that differ, and none where nothing is asked for, or what there is', () => {
  const sent: IpvsTimeouts[] = []
  const client = {
    timeouts: () => PRESENT,
    setTimeouts: (timeouts: IpvsTimeouts) => void sent.push(timeouts),
  }
  applyTimeouts(client, { tcpS: 0, tcpFinS: 0, udpS: 0 })
  applyTimeouts(client, { tcpS: 900, tcpFinS: 0, udpS: 300 })
  expect(sent).toEqual([])
  applyTimeouts(client, { tcpS: 0, tcpFinS: 30, udpS: 300 })
  expect(sent).toEqual([{ tcpS: 0, tcpFinS: 30, udpS: 0 }])
})

it('reads of what port each endpoint is, and what it has seen', async () => {
  const { node, clock, start } = ipvsBench()
  const rig = start()
  await rig.sync(serviceOf('web', { ip: '172.30.0.1', endpoints: ['10.1.0.1', '10.1.0.2'] }))
  for (const { destinations } of node.ipvs.servers.values())
    for (const destination of destinations.values())
      destination.stats = { connections: 3n, packetsIn: 9n, packetsOut: 8n, bytesIn: 90n, bytesOut: 80n }
  const { rendered } = rig.reconciler
  if (rendered === undefined) throw new Error('nothing was rendered')
  const counts = await readTraffic(ipvsKernelOf(node, clock).ipvs, rendered)
  expect(counts.map(({ endpoint }) => endpoint).sort()).toEqual(['10.1.0.1:8080', '10.1.0.2:8080'])
  expect(counts[0]).toMatchObject({
    port: expect.stringMatching(/web.*\/TCP\/IPv4$/),
    connections: 3n,
    volume: { packetsIn: 9n, packetsOut: 8n, bytesIn: 90n, bytesOut: 80n },
  })
  expect(new Set(counts.map(({ element }) => element)).size).toBe(2)
})
