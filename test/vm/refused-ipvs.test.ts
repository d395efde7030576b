import { expect, it, onTestFinished } from 'vitest'
import { withNetfilter } from '../../src/daemon/open.ts'
import { readRefused } from '../../src/modes/refused.ts'
import { openIpvsPlane } from '../support/ipvs-plane.ts'
import { Lab } from '../support/lab/lab.ts'
import { NO_LOCAL, TO_NO_LOCAL } from '../support/no-local.ts'
import { change, commitAll, computeIn, IPVS } from '../support/pipeline.ts'
import { LOCAL_IPS } from '../support/scenario.ts'
import { setIpvsSysctls } from './ipvs-sysctls.ts'

it('counts the packets that a policy Local drops for want of an endpoint', async () => {
  const lab = await Lab.start()
  setIpvsSysctls()
  const { plane, close } = openIpvsPlane({})
  onTestFinished(async () => {
    await plane.cleanup()
    await close()
    await lab.close()
  })
  const { state } = change(computeIn(IPVS, {}, LOCAL_IPS), { objects: NO_LOCAL })
  await commitAll(plane, plane.empty, state)
  expect((await lab.trace(TO_NO_LOCAL)).map(({ verdict }) => verdict)).toEqual(['DROP', 'DROP'])
  expect(await withNetfilter(connection => readRefused(connection, undefined))).toEqual([
    { family: 'IPv4', verdict: 'drop', reason: 'no-local-endpoints', service: '', packets: 75 },
  ])
})
