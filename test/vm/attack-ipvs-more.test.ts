import { afterEach, expect, it } from 'vitest'
import { API_ADDRESS } from '../faults/api-apart.ts'
import { ApiCapture, NOWHERE, type Where } from '../faults/api-capture.ts'
import { ip } from '../support/lab/topology.ts'
import { sliceOf } from '../support/objects.ts'
import { eventually } from '../support/patience.ts'

let rig: ApiCapture
afterEach(() => rig.close())

const CHAINS = '--ipvs-rules=iptables'
type How = 'without endpoints' | 'with an endpoint that refuses'

it.each<readonly [Where, How, readonly string[], readonly string[]]>([
  ['local', 'without endpoints', [], ['--proxy-mode=ipvs']],
  ['apart', 'with an endpoint that refuses', [], ['--proxy-mode=ipvs']],
  ['local', 'with an endpoint that refuses', [CHAINS], ['--proxy-mode=ipvs', CHAINS]],
  ['apart', 'without endpoints', [CHAINS], ['--proxy-mode=ipvs', CHAINS]],
  ['apart', 'with an endpoint that refuses', [], ['--proxy-mode=nftables']],
])(
  'F131: IPVS mode captured the API server, %s, a Service %s %j: a daemon with %j frees the node',
  async (where, how, before, args) => {
    rig = await ApiCapture.open(where)
    const { cluster } = rig
    ip([`addr add ${NOWHERE}/32 dev lo`])
    const ports = [{ name: 'http', port: 6443, protocol: 'TCP' }]
    const slices = how === 'without endpoints' ? [] : [sliceOf('thief', [NOWHERE], { ports })]
    await rig.captured('ipvs', [rig.thief(), ...slices], before)
    cluster.put(rig.thief(), ...slices)
    const daemon = await cluster.running({ args })
    await daemon.logged('refused')
    await eventually(() => rig.isOpen())
    await daemon.caughtUp()
    const bound = daemon.said('removed the address').flatMap(({ addresses }) => addresses)
    // An address that another device has is never bound.
    expect(bound).toEqual(where === 'apart' ? [API_ADDRESS] : [])
  },
)
