import { describe, expect, it } from 'vitest'
import { PersistentMap } from '../../../../src/base/collections.ts'
import { entryKey, type Ipset } from '../../../../src/kernel/ipset/state.ts'
import {
  destinationKey,
  type IpvsProtocol,
  type RealServer,
  serverKey,
} from '../../../../src/kernel/ipvs/state.ts'
import { compileRule } from '../../../../src/kernel/xt/compile.ts'
import { diffStates } from '../../../../src/modes/ipvs/diff.ts'
import type { IpvsPlan, Phase } from '../../../../src/modes/ipvs/plan.ts'
import { DEFAULT_IPVS_OPTIONS } from '../../../../src/modes/ipvs/settings.ts'
import { EMPTY_STATE, type IpvsState, type PlacedServer } from '../../../../src/modes/ipvs/state.ts'
import { ip, real, virtual } from '../../../support/ipvs-objects.ts'
import { IS_QUICK } from '../../../support/runs.ts'

const CLUSTER_IPS: Ipset = {
  name: 'KUBE-CLUSTER-IP',
  type: 'hash:ip,port',
  family: 'IPv4',
  maxElements: 65_536,
  hashSize: 1_024,
}

interface Spec {
  readonly destinations: readonly RealServer[]
  readonly scheduler?: string
  readonly protocol?: IpvsProtocol
}

/** A server at 172.30.0.N for each, with its entry and address. */
function stateOf(servers: readonly Spec[], set: Ipset = CLUSTER_IPS): IpvsState {
  const placed = servers.map(({ destinations, scheduler = 'rr', protocol = 'TCP' }, i): PlacedServer => {
    const server = virtual(`172.30.0.${i + 1}`, 80, { scheduler, protocol })
    const all = destinations.map((each): [string, RealServer] => [destinationKey(each), each])
    return { server, destinations: new Map(all), service: `ns/s${i + 1}`, port: '' }
  })
  const entries = placed.map(({ server, service }) => {
    const entry = { ip: server.ip, protocol: 6, port: 80 }
    return [entryKey(set.name, entry), { set: set.name, entry, services: [service] }] as const
  })
  return {
    ...EMPTY_STATE,
    servers: PersistentMap.from(placed.map(each => [serverKey(each.server), each] as const)),
    sets: new Map([[set.name, set]]),
    entries: PersistentMap.from(entries),
    addresses: PersistentMap.from(
      placed.map(({ server, service }) => [server.ip, { ip: server.ip, services: [service] }] as const),
    ),
    device: true,
  }
}

function plan(from: IpvsState, to: IpvsState): IpvsPlan {
  return diffStates(from, to, { ...DEFAULT_IPVS_OPTIONS, codec: { compile: compileRule } })
}

function lines({ describe: tell }: IpvsPlan): readonly string[] {
  return [...tell()].map(({ verb, object, service }) => `${service ?? '-'} ${verb} ${object}`)
}

function phase<K extends Phase['kind']>({ phases }: IpvsPlan, kind: K): PhaseOf<K> | undefined {
  return phases.find((each): each is PhaseOf<K> => each.kind === kind)
}

type PhaseOf<K extends Phase['kind']> = Phase extends infer P
  ? P extends { readonly kind: infer Kinds }
    ? K extends Kinds
      ? P
      : never
    : never
  : never

const ONE = real('10.1.0.1', 8080)
const TWO = real('10.1.0.2', 8080)

describe('the phases of a plan', () => {
  it('take what goes out the other way round', () => {
    const { phases } = plan(stateOf([{ destinations: [ONE] }]), EMPTY_STATE)
    expect(phases.map(({ kind }) => kind)).toEqual([
      'remove-addresses',
      'remove-device',
      'remove-servers',
      'remove-sets',
    ])
  })

  it('tell what they do, in the words of the tools that list it', () => {
    const from = stateOf([{ destinations: [ONE] }])
    const to = stateOf([
      { destinations: [TWO], scheduler: 'lc' },
      { destinations: [ONE], protocol: 'UDP' },
    ])
    const told = plan(from, to)
    expect(lines(told)).toEqual([
      'ns/s1 change virtual server TCP 172.30.0.1:80 lc',
      'ns/s1 add real server 10.1.0.2:8080 of TCP 172.30.0.1:80 weight 1',
      'ns/s1 change real server 10.1.0.1:8080 of TCP 172.30.0.1:80 weight 0',
      'ns/s2 add entry KUBE-CLUSTER-IP 172.30.0.2,tcp:80',
      'ns/s2 add virtual server UDP 172.30.0.2:80 rr',
      'ns/s2 add real server 10.1.0.1:8080 of UDP 172.30.0.2:80 weight 1',
      'ns/s2 add address 172.30.0.2/32 dev kube-ipvs0',
    ])
    expect(told.changes).toBe(7)
    expect(told.rebuilds).toBe(false)
  })
})

describe('a set', () => {
  it('that is larger in the kernel stays as it is', () => {
    const large = { ...CLUSTER_IPS, maxElements: 262_144 }
    const from = stateOf([{ destinations: [ONE] }], large)
    const to = stateOf([{ destinations: [ONE] }])
    const nothing = plan(from, to)
    expect(nothing.empty).toBe(true)
    expect(nothing.after.sets.get(CLUSTER_IPS.name)).toBe(large)
  })

  it('that is too small for what comes beside what goes is replaced by a larger one first', () => {
    const small = { ...CLUSTER_IPS, maxElements: 2 }
    const from = stateOf([{ destinations: [ONE] }, { destinations: [ONE] }], small)
    const to = stateOf([{ destinations: [ONE] }, { destinations: [ONE] }, { destinations: [ONE] }], small)
    const grown = plan(from, to)
    expect(grown.phases[0]).toMatchObject({ kind: 'add-sets', sets: [{ replaces: { set: small } }] })
    expect(grown.after.sets.get(small.name)?.maxElements).toBeGreaterThan(2)
    expect(lines(grown)[0]).toMatch(/^- change ipset KUBE-CLUSTER-IP hash:ip,port maxelem 2 -> \d+$/)
  })

  it.skipIf(IS_QUICK)(
    'of kube-proxy’s size is replaced once by one with room and buckets for all that comes',
    () => {
      const wide = { ...CLUSTER_IPS, maxElements: 262_144, hashSize: 131_072 }
      const entries = Array.from({ length: 100_000 }, (_, i) => {
        const entry = { ip: String.fromCharCode(10, i >> 16, (i >> 8) & 255, i & 255), protocol: 6, port: 80 }
        return [entryKey(wide.name, entry), { set: wide.name, entry, services: ['ns/many'] }] as const
      })
      const to = { ...stateOf([], wide), entries: PersistentMap.from(entries) }
      const grown = plan(stateOf([{ destinations: [ONE] }]), to)
      expect(phase(grown, 'add-sets')?.sets).toMatchObject([{ set: wide, replaces: { set: CLUSTER_IPS } }])
      expect(phase(grown, 'add-entries')?.lists[0]?.entries).toHaveLength(100_000)
      expect(grown.after.sets.get(wide.name)).toEqual(wide)
      expect(plan({ ...to, sets: grown.after.sets }, to).empty).toBe(true)
    },
  )

  it('gets an entry back that another program made an exception, and loses other exceptions', () => {
    const to = stateOf([{ destinations: [ONE] }])
    const excepted = (state: IpvsState) =>
      state.entries.entries().map(([key, placed]) => {
        const entry = { ...placed.entry, nomatch: true as const }
        return [key, { ...placed, entry, services: [] }] as const
      })
    const both = stateOf([{ destinations: [ONE] }, { destinations: [ONE] }])
    const { phases } = plan({ ...to, entries: PersistentMap.from(excepted(both)) }, to)
    expect(phases).toMatchObject([
      { kind: 'add-entries', lists: [{ entries: [{ ip: ip('172.30.0.1') }] }] },
      { kind: 'remove-entries', lists: [{ entries: [{ ip: ip('172.30.0.2') }] }] },
    ])
    const small: Ipset = { ...CLUSTER_IPS, maxElements: 1 }
    const crowded = {
      ...to,
      entries: PersistentMap.from(excepted(both)),
      sets: new Map([[small.name, small]]),
    }
    const growth = phase(plan(crowded, to), 'add-sets')?.sets[0]?.replaces?.growth
    expect(growth?.build).toContainEqual(expect.objectContaining({ verb: 'add-entries', entries: [] }))
  })

  it('of another type is for the kernel to refuse', () => {
    const other: Ipset = { ...CLUSTER_IPS, type: 'hash:ip' }
    const { phases } = plan({ ...EMPTY_STATE, sets: new Map([[other.name, other]]) }, stateOf([]))
    expect(phases[0]).toMatchObject({ kind: 'add-sets', sets: [{ set: CLUSTER_IPS, replaces: undefined }] })
  })
})

describe('the device', () => {
  it('stays when nothing is bound any more, and without a set of ours in any case', () => {
    expect(plan(stateOf([{ destinations: [] }]), stateOf([])).after.device).toBe(true)
    const alone = { ...EMPTY_STATE, device: true, addresses: PersistentMap.empty<never>() }
    expect(plan(alone, EMPTY_STATE).empty).toBe(true)
  })
})
