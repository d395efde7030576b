import { expect, it } from 'vitest'
import { finish } from '../../../../src/base/clock.ts'
import { parseIp } from '../../../../src/base/ip.ts'
import { PROTOCOL_NUMBERS } from '../../../../src/base/ip-packet.ts'
import { serviceRows } from '../../../../src/cli/service-rows.ts'
import { programmedModes } from '../../../../src/inspect/programmed.ts'
import type { FrontendTable, PortFrontends, ServiceFrontends } from '../../../../src/model/frontend.ts'
import { endpointText } from '../../../../src/modes/common/forwarder/forwarder.ts'
import { CHAIN_LOCALHOST } from '../../../../src/modes/common/rules.ts'
import { renderState } from '../../../../src/modes/nftables/render.ts'
import { DEFAULT_NFTABLES_OPTIONS } from '../../../../src/modes/nftables/settings.ts'
import { heldIn } from '../../../../src/modes/nftables/show.ts'
import { EMPTY_STATE, type NftablesState } from '../../../../src/modes/nftables/state.ts'
import { createTracer } from '../../../../src/proof/evaluate/trace.ts'
import {
  backends,
  DROP,
  EXTERNAL,
  EXTERNAL_LOCAL,
  nodePort,
  REJECT,
  service,
  table,
} from '../../../support/frontends.ts'

/* KEP-6032: which relays node ports have at localhost, and what the kernel and the rows say of them. */

const BOTH = { forwardedAtLocalhost: ['IPv4', 'IPv6'] } as const

function render(
  frontends: FrontendTable,
  base: NftablesState = EMPTY_STATE,
  without: readonly string[] = [],
) {
  return finish(renderState(frontends, { base, without: new Set(without) }, DEFAULT_NFTABLES_OPTIONS))
}

/** `key -> endpoints` of each relay. */
function forwardersOf({ forwarders }: NftablesState): readonly string[] {
  return [...forwarders.values()]
    .map(({ key, balance }) => `${key} -> ${balance.cluster.map(endpointText).join(' ')}`)
    .toSorted()
}

function web(route = EXTERNAL, count = 2): ServiceFrontends {
  const frontends = [nodePort(30080, route)]
  return service('ns/web', [
    { frontends, cluster: backends(count), local: backends(1) },
    { frontends, protocol: 'UDP', cluster: backends(count), affinityTimeoutS: 30 },
    { frontends, protocol: 'SCTP', cluster: backends(count) },
    { frontends, v6: true, cluster: backends(1, { v6: true }) },
  ])
}

function bothFamilies(port: PortFrontends): readonly PortFrontends[] {
  return [port, { ...port, family: port.family === 'IPv4' ? 'IPv6' : 'IPv4', key: `${port.key}-other` }]
}

const TCP = 'ns/web:/TCP/IPv4 127.0.0.1:30080 -> '

it('uses endpoints of this node alone with policy Local, and has no relay without endpoints', () => {
  const lists = (one: ServiceFrontends) =>
    forwardersOf(render(table([one], BOTH))).filter(text => text.startsWith(TCP))
  expect(lists(web(EXTERNAL_LOCAL))).toEqual([`${TCP}10.21.0.1:8080`])
  for (const route of [REJECT, DROP]) expect(lists(web(route))).toEqual([])
  expect(lists(web(EXTERNAL, 0))).toEqual([])
})

it('changes what changed alone, and gives the same as a render of everything', () => {
  const other = service('ns/other', [{ frontends: [nodePort(30081, EXTERNAL)], cluster: backends(1) }])
  const held = render(table([web(), other], BOTH))
  const steps: readonly FrontendTable[] = [
    table([web(EXTERNAL, 3), other], BOTH),
    table([web(EXTERNAL_LOCAL, 3), other], BOTH),
    table([other], BOTH),
    table([web(EXTERNAL, 1)], BOTH),
    table([web(EXTERNAL, 1)], { forwardedAtLocalhost: ['IPv4'] }),
    table([web(EXTERNAL, 1)]),
    table([web(EXTERNAL, 1), other], BOTH),
  ]
  let state = held
  for (const step of steps) {
    state = render(step, state)
    expect(forwardersOf(state)).toEqual(forwardersOf(render(step)))
  }
  const same = held.forwarders.get('ns/other:/TCP/IPv4 127.0.0.1:30081')
  expect(render(table([web(EXTERNAL, 3), other], BOTH), held).forwarders.get(same?.key ?? '')).toBe(same)
})

it('leaves out what the kernel rejected, and has it again', () => {
  const all = table([web()], BOTH)
  const held = render(all, EMPTY_STATE, ['ns/web'])
  expect(forwardersOf(held)).toEqual([])
  expect(forwardersOf(render(all, held))).toHaveLength(3)
  expect(forwardersOf(render(all, render(all), ['ns/web']))).toEqual([])
})

it('gives a node port that changes its owner to the new one', () => {
  const of = (name: string) =>
    service(name, [{ frontends: [nodePort(30080, EXTERNAL)], cluster: backends(1) }])
  const held = render(table([of('ns/a')], BOTH))
  expect(forwardersOf(render(table([of('ns/b')], BOTH), held))).toEqual([
    'ns/b:/TCP/IPv4 127.0.0.1:30080 -> 10.21.0.1:8080',
  ])
})

it('shows whoever reads the kernel that there is a relay, and which endpoints it has', () => {
  const state = render(table([web(EXTERNAL_LOCAL)], BOTH))
  const chains = state.ruleset.tables.map(each => each.chains.has(CHAIN_LOCALHOST))
  expect(chains).toEqual([true, true])
  const held = heldIn(state.ruleset.tables, ['ip', 'ip6'])
  const rows = programmedModes(held === undefined ? [] : [held])[0]?.rows ?? []
  expect(rows.filter(({ problem }) => problem !== undefined)).toEqual([])
  const atLocalhost = rows.filter(({ frontend }) => /^(127\.0\.0\.1|\[::1\]):/.test(frontend))
  const row = { service: 'ns/web', type: 'NodePort', mode: 'nftables' }
  const v4 = '127.0.0.1:30080'
  expect(atLocalhost).toEqual([
    { ...row, protocol: 'SCTP', frontend: v4, action: 'reject', endpoints: [] },
    { ...row, protocol: 'TCP', frontend: v4, action: 'relay', endpoints: ['10.21.0.1:8080'], listener: v4 },
  ])
  const wanted = serviceRows(table([web(EXTERNAL_LOCAL)], BOTH))
  const unmoded = atLocalhost.map(({ mode: _, ...each }) => each)
  expect(wanted.filter(({ frontend }) => frontend === v4)).toEqual(unmoded)
})

it.each([
  ['IPv4', '127.0.0.1'],
  ['IPv6', '::1'],
] as const)('lets TCP and UDP pass to the listeners, and rejects SCTP at node ports alone: %s', (_, to) => {
  const { ruleset } = render(table([{ ...web(), ports: web().ports.flatMap(bothFamilies) }], BOTH))
  const tracer = createTracer(ruleset)
  const verdict = (protocol: keyof typeof PROTOCOL_NUMBERS, destinationPort: number) =>
    tracer.trace(
      {
        origin: 'process',
        protocol: PROTOCOL_NUMBERS[protocol],
        source: parseIp(to) ?? '',
        sourcePort: 40_000,
        destination: parseIp(to) ?? '',
        destinationPort,
      },
      { localIps: new Set(), random: () => 0 },
    ).verdict
  expect([verdict('TCP', 30080), verdict('UDP', 30080)]).toEqual(['accept', 'accept'])
  expect([verdict('SCTP', 30080), verdict('SCTP', 30081)]).toEqual(['reject', 'accept'])
})
