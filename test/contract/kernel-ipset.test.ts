import { execFileSync } from 'node:child_process'
import fc from 'fast-check'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { IpsetClient } from '../../src/kernel/ipset/client.ts'
import {
  createText,
  entryKey,
  entryText,
  type IpsetListing,
  printSets,
} from '../../src/kernel/ipset/state.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import type { Transport } from '../../src/netlink/transport.ts'
import '../support/properties.ts'
import { add, anyFilledSet, type FilledSet } from '../support/fake-ipset/arbitraries.ts'
import { readSaved } from '../support/fake-ipset/saved.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { runs } from '../support/runs.ts'
import { type IpsetTargetFactory, ipsetClientSuite } from './ipset-client-suite.ts'
import { ipsetMessagesSuite } from './ipset-messages-suite.ts'
import { versionOfThisKernel } from './target.ts'

const opened = new Set<Transport>()

function open(): Transport {
  const transport = openNetlink({ protocol: NETLINK_NETFILTER })
  opened.add(transport)
  return transport
}

function ipset(args: readonly string[], input?: string): string {
  return execFileSync('ipset', args, { encoding: 'utf8', ...(input === undefined ? {} : { input }) })
}

const real: IpsetTargetFactory = () => {
  freshNetns()
  let lists = 0
  return {
    version: versionOfThisKernel(),
    open,
    // A set of sets refers to its members as rules do.
    refer: name => {
      const list = `refers-${++lists}`
      ipset(['create', list, 'list:set'])
      ipset(['add', list, name])
    },
    makeForeign: name => void ipset(['create', name, 'list:set']),
  }
}

afterEach(async () => {
  await Promise.all([...opened].map(transport => transport.close()))
  opened.clear()
})

describe('the ipsets of this machine', () => {
  describe('answer messages', () => ipsetMessagesSuite(real))
  describe('serve the client', () => ipsetClientSuite(real))
  describe('judged by the tool', judged)
})

function judged(): void {
  let client: IpsetClient
  beforeEach(() => {
    freshNetns()
    client = new IpsetClient({ transport: open(), clock: systemClock })
  })

  const NAMES = ['A', 'KUBE-6-LOAD-BALANCER-SOURCE-IP']
  const two = fc.tuple(...NAMES.map(name => anyFilledSet(name, 200)))

  test('our text is that of `ipset save`, byte for byte', async () => {
    await fc.assert(
      fc.asyncProperty(two, async filled => {
        const operations = filled.flatMap(each => [{ verb: 'create', set: each.set } as const, add(each)])
        expect(await client.commit(operations)).toMatchObject({ failures: [], unknown: undefined })
        const ours = [...printSets(await client.list(NAMES))].map(line => `${line}\n`).join('')
        expect(ours).toBe(ipset(['save']))
        ipset(['destroy'])
      }),
      { numRuns: runs(40) },
    )
  })

  test('what `ipset restore` wrote is read as it was', async () => {
    await fc.assert(
      fc.asyncProperty(two, async filled => {
        ipset(['restore'], filled.flatMap(restoreLines).join('\n'))
        const listings = await client.list(NAMES)
        expect(listings.map(({ set }) => set)).toEqual(filled.map(({ set }) => set))
        expect(listings.map(keysOf)).toEqual(filled.map(keysOf))
        const saved = readSaved(ipset(['save']))
        expect(saved).toEqual(listings.map(asSaved))
        ipset(['destroy'])
      }),
      { numRuns: runs(40) },
    )
  })

  test('sets of older revisions, with counters, timeouts or masks', async () => {
    const lines = [
      'create plain hash:ip,port,net',
      'create counted hash:ip counters',
      'create passing hash:ip timeout 100',
      'create masked hash:ip netmask 24',
      'create some bitmap:port range 80-90',
      'create forced hash:ip forceadd',
    ]
    ipset(['restore'], lines.join('\n'))
    ipset(['add', 'plain', '10.0.0.1,tcp:80,10.0.0.0/8'])
    ipset(['add', 'plain', '10.0.0.1,tcp:80,10.1.0.0/16', 'nomatch'])
    const { headers, foreign } = await client.headers()
    expect(headers.map(({ set }) => set.name)).toEqual(['plain'])
    expect(foreign).toEqual(['counted', 'passing', 'masked', 'some', 'forced'])
    const [listing] = await client.list(['plain', 'counted'])
    expect(listing?.entries.map(entry => entryText(listing.set, entry)).sort()).toEqual([
      '10.0.0.1,tcp:80,10.0.0.0/8',
      '10.0.0.1,tcp:80,10.1.0.0/16 nomatch',
    ])
  })
}

function restoreLines({ set, entries }: FilledSet): readonly string[] {
  return [createText({ set }), ...entries.map(entry => `add ${set.name} ${entryText(set, entry)}`)]
}

function keysOf({ set, entries }: FilledSet): readonly string[] {
  return entries.map(entry => entryKey(set.name, entry)).sort()
}

function asSaved({ set, entries, bucketSize, initialValue }: IpsetListing) {
  return { set, bucketSize, initialValue, entries }
}
