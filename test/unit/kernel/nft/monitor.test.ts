import { expect, it } from 'vitest'
import {
  type ForeignCommit,
  type ForeignCommitsOptions,
  watchForeignCommits,
} from '../../../../src/kernel/nft/monitor.ts'
import { SystemError } from '../../../../src/netlink/transport.ts'
import {
  attribute,
  be32,
  datagram,
  message,
  nest,
  ScriptedTransport,
} from '../../../support/scripted-transport.ts'

function listen(concerns?: ForeignCommitsOptions['concerns']) {
  const commits: ForeignCommit[] = []
  const overruns: Error[] = []
  const transport = new ScriptedTransport(() => [])
  const watch = watchForeignCommits({
    transport,
    ownPortIds: new Set([77]),
    onCommit: commit => commits.push(commit),
    ...(concerns === undefined ? {} : { concerns }),
    onOverrun: error => overruns.push(error),
  })
  return { transport, watch, commits, overruns }
}

/** A notification of something within a table; the second attribute differs between kinds of objects. */
function touched(family: number, table: string, portId = 5): string {
  const head = `${String.fromCharCode(family)}\0\0\0`
  const attributes = attribute(1, `${table}\0`) + attribute(2, be32(0), be32(1))
  return message({ type: 0x0a0e, portId, payload: head + attributes })
}

const NFTABLES = 7

function generation(id: number, name: string, portId = 5): string {
  const attributes = attribute(1, be32(id)) + attribute(2, be32(4242)) + attribute(3, `${name}\0`)
  return message({ type: 0x0a0f, portId, payload: `\0\0\0\0${attributes}` })
}

/** NFT_MSG_NEWRULE of a rule that jumps. */
function jump(chain: string, to: string, portId = 5): string {
  const verdict = nest(2, nest(2, attribute(1, be32(-3)) + attribute(2, `${to}\0`)))
  const expressions = nest(4, nest(1, attribute(1, 'immediate\0') + nest(2, attribute(1, be32(0)) + verdict)))
  const place = attribute(1, 'nat\0') + attribute(2, `${chain}\0`) + attribute(3, be32(0), be32(17))
  return message({ type: 0x0a06, portId, payload: `\x02\0\0\0${place}${expressions}` })
}

function chain(name: string): string {
  const attributes = attribute(1, 'nat\0') + attribute(2, be32(0), be32(1)) + attribute(3, `${name}\0`)
  return message({ type: 0x0a05, portId: 5, payload: `\x0a\0\0\0${attributes}` })
}

it('asks what chains and rules concern, of others’ commits alone and no longer than it takes', () => {
  const asked: string[] = []
  const { transport, commits } = listen(({ family, table, chain, handle, targets }) => {
    asked.push([family, table, chain, handle, ...targets()].join(' '))
    return targets().includes('KUBE-SERVICES')
  })
  transport.arrive(
    datagram(jump('OUTPUT', 'KUBE-SERVICES', 77), generation(8, 'node', 77)),
    datagram(chain('KUBE-SVC-A'), touched(2, 'other'), generation(9, 'nft')),
    datagram(jump('OUTPUT', 'DOCKER'), jump('OUTPUT', 'KUBE-SERVICES'), chain('B'), generation(10, 'nft')),
    datagram(generation(11, 'nft')),
  )
  expect(asked).toEqual([
    'ip6 nat KUBE-SVC-A ',
    'ip other  ',
    'ip nat OUTPUT 17 DOCKER',
    'ip nat OUTPUT 17 KUBE-SERVICES',
  ])
  expect(commits.map(({ generation, concerned }) => [generation, concerned])).toEqual([
    [9, false],
    [10, true],
    [11, false],
  ])
})

it('leaves out our own commits, and what they touched', () => {
  const { transport, commits } = listen()
  transport.arrive(
    datagram(touched(2, 'kube-proxy', 77), generation(9, 'node', 77)),
    datagram(generation(10, 'nft')),
  )
  expect(commits).toMatchObject([{ generation: 10, tables: [] }])
})

it('reports lost and unreadable notifications, and goes on', () => {
  const { transport, commits, overruns } = listen()
  transport.arrive(
    datagram(touched(2, 'half')),
    new SystemError('recvmsg', 105, 'ENOBUFS'),
    datagram('nonsense'),
    datagram(generation(9, 'nft')),
  )
  expect(overruns.map(({ message }) => message.slice(0, 16))).toEqual([
    'recvmsg: ENOBUFS',
    'decode netlink m',
  ])
  expect(commits).toMatchObject([{ tables: [], complete: false, generation: 9 }])
})

it('vouches for no commit that a gap may lie in, and for all after it', () => {
  const { transport, commits } = listen()
  transport.arrive(
    datagram(touched(2, 'early')),
    new SystemError('recvmsg', 105, 'ENOBUFS'),
    datagram(touched(2, 'early'), generation(9, 'nft'), touched(2, 'late')),
  )
  // What came when the queue was empty again belongs to a commit whose beginning was dropped.
  transport.arrive(datagram(touched(2, 'late'), generation(12, 'nft')))
  transport.arrive(datagram(touched(2, 'after'), generation(13, 'nft')))
  expect(commits.map(({ generation: id, complete }) => [id, complete])).toEqual([
    [9, false],
    [12, false],
    [13, true],
  ])
})

it('says so when a commit touched more tables than it names', () => {
  const { transport, commits } = listen()
  const tables = Array.from({ length: 40 }, (_, i) => touched(2, `t${i}`))
  transport.arrive(datagram(...tables, generation(9, 'nft')))
  transport.arrive(datagram(...tables.slice(0, 32), touched(2, 't3'), generation(10, 'nft')))
  expect(commits.map(({ tables: names, complete }) => [names.length, complete])).toEqual([
    [32, false],
    [32, true],
  ])
})

it('joins the group, and leaves it when it is stopped', () => {
  const { transport, watch } = listen()
  expect([...transport.joined]).toEqual([NFTABLES])
  watch.stop()
  watch.stop()
  expect([...transport.joined]).toEqual([])
  expect(transport.watched).toBe(false)
})
