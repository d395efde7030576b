import { describe, expect, it } from 'vitest'
import { familyOf, formatIpPort, type Ip, isLoopback } from '../../../../src/base/ip.ts'
import type { Backend, Frontend, PortFrontends } from '../../../../src/model/frontend.ts'
import { EMPTY_STATE, type IpvsState } from '../../../../src/modes/ipvs/state.ts'
import { differences } from '../nftables/inspect.ts'
import { atEachStep, atTheEnd, type World } from '../world.ts'
import { complaints, everything, render } from './rendered.ts'

/** Rendered with a kernel that lacks one of the schedulers that Services ask for. */
function next(world: World, base: IpvsState): IpvsState {
  const options = { missingSchedulers: new Set(['none-such']) }
  return render(world.table, base, { without: new Set(world.without), options })
}

/** What the model asks of each virtual server: `TCP 10.96.0.1:80 lc 60 -> ...`. */
function expected(world: World): Map<string, string> {
  const ports = world.table.services
    .values()
    .filter(({ service }) => !world.without.has(service))
    .flatMap(one => one.ports)
  const wanted = new Map<string, string>()
  const put = (port: PortFrontends, frontend: Frontend, ip: Ip) => {
    const { scheduler = 'rr', affinityTimeoutS } = port
    const its = scheduler === 'none-such' ? 'rr' : scheduler
    const to = listOf(frontend, port).map(backend => formatIpPort(backend.ip, backend.port))
    wanted.set(
      `${port.protocol} ${formatIpPort(ip, frontend.port)}`,
      `${its} ${affinityTimeoutS} ${port.service} -> ${[...new Set(to)].sort().join(' ')}`,
    )
  }
  // What is at one address comes before what is at all of them.
  for (const port of ports)
    for (const frontend of port.frontends)
      if (frontend.ip === undefined) for (const ip of nodePortIps(world, port)) put(port, frontend, ip)
  for (const port of ports)
    for (const frontend of port.frontends) if (frontend.ip !== undefined) put(port, frontend, frontend.ip)
  return wanted
}

function nodePortIps({ table }: World, { family }: PortFrontends): readonly Ip[] {
  const selected = table.nodePorts[family]
  const ips = selected.kind === 'only' ? selected.ips : table.localIps
  return ips.filter(ip => familyOf(ip) === family && !isLoopback(ip))
}

function listOf({ route }: Frontend, { cluster, local }: PortFrontends): readonly Backend[] {
  if (route.kind === 'internal') return route.over === 'local' ? local : cluster
  if (route.kind === 'external-cluster') return cluster
  return route.kind === 'external-local' ? local : []
}

function held(state: IpvsState): Map<string, string> {
  return new Map(
    state.servers
      .entries()
      // Above all ports of this world: those that only the rules know.
      .filter(([, { server }]) => server.port < 60_000)
      .map(([key, { server, destinations, service }]) => [
        key,
        `${server.scheduler} ${server.timeoutS} ${service} -> ${[...destinations.keys()].sort().join(' ')}`,
      ]),
  )
}

describe('a state that changes step by step', () => {
  const course = (tries: number) => ({ empty: EMPTY_STATE, next, tries })

  it('is at every step what a full render gives, holds together, and serves what the model says', () => {
    atEachStep(course(60), (state, world) => {
      expect(complaints(state)).toEqual([])
      expect(held(state)).toEqual(expected(world))
      const full = next(world, { ...state, frontends: undefined })
      expect(everything(full)).toEqual(everything(state))
      expect(differences(state, full)).toEqual([])
    })
  })

  it('keeps every object that is the same, even when all is rendered anew', () => {
    atTheEnd(course(30), (state, world) => {
      for (const base of [state, { ...state, frontends: undefined }]) {
        const again = next(world, base)
        expect(again.servers).toBe(state.servers)
        expect(again.entries).toBe(state.entries)
        expect(again.addresses).toBe(state.addresses)
        expect(again.sets).toBe(state.sets)
        expect(again.ruleset).toBe(state.ruleset)
      }
    })
  })

  it('ends the same whether it changed step by step or came at once', () => {
    atTheEnd(course(30), (state, world) => {
      expect(everything(next(world, EMPTY_STATE))).toEqual(everything(state))
    })
  })
})
