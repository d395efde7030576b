import { execFileSync } from 'node:child_process'
import { connect } from 'node:net'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { finish, systemClock } from '../../src/base/clock.ts'
import { createNftClient, type NftClient } from '../../src/kernel/nft/client.ts'
import type { FrontendTable } from '../../src/model/frontend.ts'
import { readConnections } from '../../src/modes/nftables/metrics.ts'
import { createNftablesPlane } from '../../src/modes/nftables/plane.ts'
import { DEFAULT_NFTABLES_OPTIONS } from '../../src/modes/nftables/settings.ts'
import type { NftablesState } from '../../src/modes/nftables/state.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { backends, clusterIp, ip4, service, table } from '../support/frontends.ts'
import { freshNetns } from '../support/lab/netns.ts'

let client: NftClient

beforeEach(() => {
  freshNetns()
  const lines = ['link set lo up', 'address add 10.21.0.1/32 dev lo', 'route add default dev lo']
  execFileSync('ip', ['-batch', '-'], { input: lines.join('\n') })
  client = createNftClient({ transport: openNetlink({ protocol: NETLINK_NETFILTER }), clock: systemClock })
})

afterEach(() => client.close())

/** Brings the kernel to what `frontends` asks for, whatever it holds; gives the plans' numbers of changes. */
async function program(frontends: FrontendTable, connectionCounters: boolean): Promise<NftablesState> {
  const options = { ...DEFAULT_NFTABLES_OPTIONS, connectionCounters }
  const plane = createNftablesPlane({ client, options })
  const { state } = await plane.observe()
  const wanted = finish(plane.render(frontends, { base: state, without: new Set() }))
  let from = state
  for (let rounds = 0; rounds < 3; rounds++) {
    const plan = finish(plane.diff(from, wanted))
    if (plan.empty) return wanted
    const receipt = await plane.commit(plan, {})
    expect(receipt.refusals.map(({ error }) => error.message)).toEqual([])
    from = plan.after
  }
  throw new Error('three commits were not enough')
}

/** Nobody listens behind the Service: the answer is a reset, and the choice of the endpoint has been counted. */
function attempt(host: string): Promise<void> {
  return new Promise(resolve => {
    const socket = connect({ host, port: 80 })
    socket.on('error', () => resolve())
    socket.on('connect', () => {
      socket.destroy()
      resolve()
    })
  })
}

const web = (affinityTimeoutS: number) =>
  table([
    service('ns/web', [
      { frontends: [clusterIp(ip4(10, 96, 0, 1), 80)], cluster: backends(1), affinityTimeoutS },
    ]),
  ])

async function counts(state: NftablesState): Promise<string[]> {
  const found = await readConnections(client, state)
  return found.map(({ port, endpoint, connections }) => `${port} ${endpoint} ${connections}`)
}

it.each([0, 600])(
  'counts each new connection at the endpoint chosen, with affinity of %d s',
  async timeoutS => {
    const state = await program(web(timeoutS), true)
    expect(await counts(state)).toEqual(['ns/web:/TCP/IPv4 10.21.0.1:8080 0'])
    for (let n = 0; n < 3; n++) await attempt('10.96.0.1')
    expect(await counts(state)).toEqual(['ns/web:/TCP/IPv4 10.21.0.1:8080 3'])
    expect(
      execFileSync('nft', ['list', 'map', 'ip', 'kube-proxy', 'endpoints-tcp'], { encoding: 'utf8' }),
    ).toContain('counter packets 3')
  },
)

it('does not take what was counted for a difference, and follows the option', async () => {
  await program(web(0), true)
  await attempt('10.96.0.1')
  const generation = client.generation()
  await program(web(0), true)
  expect(client.generation()).toBe(generation)
  const without = await program(web(0), false)
  expect(client.generation()).toBeGreaterThan(generation)
  expect(await counts(without)).toEqual([])
})
