import { execFileSync } from 'node:child_process'
import { afterEach, expect, it, onTestFinished } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { parseIp } from '../../src/base/ip.ts'
import { openIpvsPlane } from '../support/ipvs-plane.ts'
import { serviceOf } from '../support/ipvs-services.ts'
import { PlaneRig } from '../support/plane-rig.ts'

const ipvsadm = (...words: readonly string[]): string => execFileSync('ipvsadm', words, { encoding: 'utf8' })

afterEach(() => {
  ipvsadm('-C')
})

it('serves all Services but the one whose virtual server exists and is missing in each list', async () => {
  ipvsadm('-A', '-t', '172.30.0.2:80', '-s', 'rr')
  const { plane, ipvs, close } = openIpvsPlane({})
  const list = ipvs.servers.bind(ipvs)
  ipvs.servers = async () => (await list()).filter(({ ip }) => ip !== parseIp('172.30.0.2'))
  const rig = new PlaneRig({ plane, clock: systemClock })
  onTestFinished(async () => {
    await rig.close()
    await plane.cleanup()
    await close()
  })
  rig.offer([
    ...serviceOf('taken', { ip: '172.30.0.2', endpoints: ['10.1.0.2'] }),
    ...serviceOf('new', { ip: '172.30.0.3', endpoints: ['10.1.0.3'] }),
  ])
  await rig.synced()
  expect(rig.of('stale')).toHaveLength(2)
  expect(rig.of('failed')).toEqual([])
  const message = 'set virtual server TCP 172.30.0.2:80 (ns/taken): EEXIST'
  expect(rig.of('quarantined')).toMatchObject([
    { service: 'ns/taken', error: { message: expect.stringContaining(message) } },
  ])
  expect(ipvsadm('-S', '-n')).toContain('-a -t 172.30.0.3:80 -r 10.1.0.3:8080')
  const addresses = () => execFileSync('ip', ['-4', 'addr', 'show', 'kube-ipvs0'], { encoding: 'utf8' })
  expect(addresses()).toContain('172.30.0.3/')
  expect(addresses()).not.toContain('172.30.0.2/')
})
